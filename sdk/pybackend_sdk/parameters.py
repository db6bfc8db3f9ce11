"""Custom parameters of requests and responses: models set them as a dict, which is checked, and read JSON text."""

import json
from typing import Any, Dict, Optional, Union

from pybackend_sdk.arguments import INT64_MAX, INT64_MIN, text
from pybackend_sdk.error import TritonModelException

ParameterValue = Union[bool, int, float, str]
Parameters = Dict[str, ParameterValue]


def checked_parameters(parameters: Any) -> Optional[Parameters]:
    """Return a private copy of the parameters that a model set; None if it set none.

    Raises:
        TritonModelException: not a dict of ``str`` to ``bool``, ``int`` or ``str``, or an int beyond 64 bits.
        TypeError: text that UTF-8 cannot express.
    """
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}: parameters map names to bool, int or str.")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        text("parameters", key, key)
        if isinstance(value, str):
            text("parameters", key, value)
        elif not isinstance(value, int):  # bool is an int too
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        elif not INT64_MIN <= value <= INT64_MAX:
            raise TritonModelException(
                f"Parameter '{key}' is {value}, which does not fit into 64 bits; send it as str."
            )
    return dict(parameters)


def parameters_json(parameters: Optional[Parameters]) -> str:
    """Return parameters as JSON text, ``{}`` if there are none."""
    return json.dumps(parameters) if parameters else "{}"
