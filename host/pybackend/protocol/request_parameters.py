"""Request parameters: those with a meaning in the protocol, and custom ones for the model.

Each codec checks their values.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pybackend.inference.request import InferenceRequest, ParameterValue, RequestFlags

BINARY_DATA_OUTPUT = "binary_data_output"
RESERVED_PREFIX = "triton_"

_ATTRIBUTES = {"sequence_id": "correlation_id", "priority": "priority", "timeout": "timeout_us"}
_FLAGS = {"sequence_start": RequestFlags.SEQUENCE_START, "sequence_end": RequestFlags.SEQUENCE_END}

RESERVED_NAMES = frozenset({*_ATTRIBUTES, *_FLAGS})
"""Parameters with a meaning in the protocol."""

Readers = Mapping[str, Callable[[Any, str], Any]]
"""By the name of a parameter that is not custom: checks its value, given its name, and returns it as a request has it.
"""


def apply_parameters(
    request: InferenceRequest,
    parameters: Mapping[str, Any],
    switch: str,
    readers: Readers,
    custom_of: Callable[[str, Any], ParameterValue],
) -> bool:
    """Apply parameters in the client's order.

    Returns the value of the one named ``switch``, which only the codec knows.
    """
    is_on = False
    custom: dict[str, ParameterValue] = {}
    for name, value in parameters.items():
        read = readers.get(name)
        if read is None:
            custom[name] = custom_of(name, value)
        elif name == switch:
            is_on = read(value, name)
        elif name in _FLAGS:
            request.flags |= _FLAGS[name] if read(value, name) else 0
        else:
            setattr(request, _ATTRIBUTES[name], read(value, name))
    if custom:
        request.parameters = custom
    return is_on
