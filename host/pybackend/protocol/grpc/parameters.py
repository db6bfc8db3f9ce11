"""Request parameters of a gRPC message: those reserved for the protocol, and custom ones for the model.

Used by: ``request``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue, RequestFlags
from pybackend.protocol.json.request_parameters import RESERVED_PREFIX, set_flag
from pybackend.protocol.refusals import invalid

EMPTY_FINAL = "triton_enable_empty_final_response"

BOOL, INT64, STRING, DOUBLE, UINT64 = "bool_param", "int64_param", "string_param", "double_param", "uint64_param"
_CUSTOM = frozenset({BOOL, INT64, STRING, DOUBLE})


def apply_grpc_parameters(request: InferenceRequest, parameters: Mapping[str, Any]) -> bool:
    """Apply a message's ``parameters``.

    Returns:
        True if the client wants an empty last response; see ``InferPlan.wants_empty_final``.

    Raises:
        InferenceError: INVALID_ARG; a parameter has the wrong type or value, or a reserved name.
    """
    wants_empty_final = False
    custom: dict[str, ParameterValue] = {}
    for name, value in parameters.items():
        if name in _RESERVED:
            _RESERVED[name](request, value)
        elif name == EMPTY_FINAL:
            wants_empty_final = parameter(value, name, BOOL)
        elif name.startswith(RESERVED_PREFIX):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
                f"with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        else:
            kind = value.WhichOneof("parameter_choice")
            if kind not in _CUSTOM:
                raise invalid(
                    f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
                )
            custom[name] = getattr(value, kind)
    if custom:
        request.parameters = custom
    return wants_empty_final


def parameter(value: Any, name: str, *kinds: str) -> Any:
    """The value of an ``InferParameter`` of one of these kinds.

    Raises:
        InferenceError: INVALID_ARG; it is of another kind.
    """
    kind = value.WhichOneof("parameter_choice")
    if kind in kinds:
        return getattr(value, kind)
    raise parameter_error(name, f" parameter, expected {' or '.join(kinds)}.")


def parameter_error(name: str, expected: str) -> InferenceError:
    """The error for a parameter of the wrong type; ``expected`` is the rest of the text."""
    return invalid(f"invalid value type for '{name}'{expected}")


def _set_sequence_id(request: InferenceRequest, value: Any) -> None:
    correlation_id = parameter(value, "sequence_id", INT64, STRING)
    # Models see the number without a sign, in 64 bits.
    request.correlation_id = correlation_id % 2**64 if type(correlation_id) is int else correlation_id


def _set_sequence_start(request: InferenceRequest, value: Any) -> None:
    set_flag(request, RequestFlags.SEQUENCE_START, parameter(value, "sequence_start", BOOL))


def _set_sequence_end(request: InferenceRequest, value: Any) -> None:
    set_flag(request, RequestFlags.SEQUENCE_END, parameter(value, "sequence_end", BOOL))


def _set_priority(request: InferenceRequest, value: Any) -> None:
    request.priority = _not_negative(parameter(value, "priority", INT64, UINT64), "priority")


def _set_timeout(request: InferenceRequest, value: Any) -> None:
    request.timeout_us = _not_negative(parameter(value, "timeout", INT64), "timeout")


def _not_negative(value: int, name: str) -> int:
    if value < 0:
        raise invalid(f"invalid value for '{name}', expected value >= 0.")
    return value


_RESERVED: dict[str, Callable[[InferenceRequest, Any], None]] = {
    "sequence_id": _set_sequence_id,
    "sequence_start": _set_sequence_start,
    "sequence_end": _set_sequence_end,
    "priority": _set_priority,
    "timeout": _set_timeout,
}
