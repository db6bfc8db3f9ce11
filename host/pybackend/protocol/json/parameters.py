"""Request parameters in JSON. Both ways of reading an infer request, and generate, end here."""

from collections.abc import Mapping
from typing import Any

from pybackend.errors import invalid
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.tensor import INT64_MAX
from pybackend.protocol.json.document import as_bool, as_string, as_unsigned, is_unsigned
from pybackend.protocol.limits import INT64_MIN
from pybackend.protocol.request_parameters import BINARY_DATA_OUTPUT, RESERVED_PREFIX, Readers, apply_parameters


def apply_json_parameters(request: InferenceRequest, parameters: Mapping[str, Any]) -> bool:
    """Apply a request's ``parameters`` object; returns True if outputs are binary by default."""
    if None in parameters.values():  # absent, if it is one of the protocol's own
        parameters = {name: value for name, value in parameters.items() if value is not None or name not in _READERS}
    return apply_parameters(request, parameters, BINARY_DATA_OUTPUT, _READERS, custom_parameter)


def custom_parameter(name: str, value: Any) -> ParameterValue:
    """The value of a parameter for the model, given in JSON."""
    if name.startswith(RESERVED_PREFIX):
        raise invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )
    kind = type(value)
    if kind is str or kind is bool or kind is float or (kind is int and INT64_MIN <= value <= INT64_MAX):
        return value  # type: ignore[no-any-return]
    raise invalid(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _json_sequence_id(value: Any, name: str) -> int | str:
    return value if is_unsigned(value) else as_string(value, name)


_READERS: Readers = {
    BINARY_DATA_OUTPUT: as_bool,
    "sequence_id": _json_sequence_id,
    "sequence_start": as_bool,
    "sequence_end": as_bool,
    "priority": as_unsigned,
    "timeout": as_unsigned,
}
