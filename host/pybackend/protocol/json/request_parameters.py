"""Request parameters: members reserved for the protocol, and custom ones for the model.

Both paths of reading an infer request end here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue, RequestFlags
from pybackend.inference.tensor import INT64_MAX
from pybackend.protocol.json.document import as_bool, as_string, as_unsigned, is_unsigned
from pybackend.protocol.limits import INT64_MIN

BINARY_DATA_OUTPUT = "binary_data_output"
RESERVED_PREFIX = "triton_"


def apply_parameters(request: InferenceRequest, parameters: Mapping[str, Any]) -> bool:
    """Apply a request's ``parameters`` object, member by member in the client's order.

    Returns:
        True if outputs are binary by default.

    Raises:
        InferenceError: INTERNAL for a reserved member of the wrong type, INVALID_ARG for a reserved prefix or a custom
            member that is not a string, integer, boolean or number.
    """
    binary_default = False
    custom: dict[str, ParameterValue] = {}
    for name, value in parameters.items():
        if name == BINARY_DATA_OUTPUT:
            binary_default = as_bool(value, name)
        elif name in _RESERVED:
            _RESERVED[name](request, value)
        else:
            custom[name] = custom_parameter(name, value)
    if custom:
        request.parameters = custom
    return binary_default


def custom_parameter(name: str, value: Any) -> ParameterValue:
    """The value of a parameter for the model.

    Raises:
        InferenceError: INVALID_ARG for a reserved prefix, or a value that is not a string, integer, boolean or number.
    """
    if name.startswith(RESERVED_PREFIX):
        raise InferenceError(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            ErrorCode.INVALID_ARG,
        )
    kind = type(value)
    if kind is str or kind is bool or kind is float or (kind is int and INT64_MIN <= value <= INT64_MAX):
        return value  # type: ignore[no-any-return]
    raise InferenceError(
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.", ErrorCode.INVALID_ARG
    )


def _set_sequence_id(request: InferenceRequest, value: Any) -> None:
    request.correlation_id = value if is_unsigned(value) else as_string(value, "sequence_id")


def _set_sequence_start(request: InferenceRequest, value: Any) -> None:
    set_flag(request, RequestFlags.SEQUENCE_START, as_bool(value, "sequence_start"))


def _set_sequence_end(request: InferenceRequest, value: Any) -> None:
    set_flag(request, RequestFlags.SEQUENCE_END, as_bool(value, "sequence_end"))


def set_flag(request: InferenceRequest, flag: RequestFlags, wanted: bool) -> None:
    """Set a flag if it is wanted."""
    if wanted:
        request.flags |= int(flag)


def _set_priority(request: InferenceRequest, value: Any) -> None:
    request.priority = as_unsigned(value, "priority")


def _set_timeout(request: InferenceRequest, value: Any) -> None:
    request.timeout_us = as_unsigned(value, "timeout")


_RESERVED: dict[str, Callable[[InferenceRequest, Any], None]] = {
    "sequence_id": _set_sequence_id,
    "sequence_start": _set_sequence_start,
    "sequence_end": _set_sequence_end,
    "priority": _set_priority,
    "timeout": _set_timeout,
}

RESERVED_NAMES = frozenset(_RESERVED)
"""Parameters with a meaning in the protocol."""
