"""Finds the sequence of a step's request: the client's, or one that an earlier step has named.

A model names a sequence with the parameters ``sequence_id``, ``sequence_start`` and ``sequence_end`` of its response.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybackend.inference.request import ParameterValue, RequestFlags

Correlation = tuple[int | str, int]
"""Correlation id and flags."""

_FLAGS = (("sequence_start", RequestFlags.SEQUENCE_START), ("sequence_end", RequestFlags.SEQUENCE_END))
_NAMES = ("sequence_id", *(name for name, _ in _FLAGS))


def named_correlation(parameters: Mapping[str, ParameterValue] | None, own: Correlation) -> Correlation | None:
    """The sequence named by a response's parameters; None if they name none.

    Args:
        parameters: of the response.
        own: the correlation of the step's request, for values that the parameters omit.
    """
    if not parameters or parameters.keys().isdisjoint(_NAMES):
        return None
    correlation_id, flags = own
    wanted = parameters.get("sequence_id", correlation_id)
    if isinstance(wanted, str) or type(wanted) is int:
        correlation_id = wanted
    for name, flag in _FLAGS:
        if name in parameters:
            flags = flags | flag if parameters[name] else flags & ~flag
    return correlation_id, flags


def correlation_parameters(correlation: Correlation) -> Mapping[str, ParameterValue]:
    """The response parameters that name a sequence."""
    correlation_id, flags = correlation
    return {"sequence_id": correlation_id, **{name: bool(flags & flag) for name, flag in _FLAGS}}
