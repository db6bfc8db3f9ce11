"""Tensors given as lists of values in a gRPC message (``InferTensorContents``), converted to wire bytes.

Used by: ``grpc_request``. Clients that care for speed send raw tensors instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pybackend.errors import InferenceError
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.refusals import invalid
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import DATATYPES, ITEMSIZE

_LISTS = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
"""The lists in the order in which they are checked, with the datatypes that they are named after."""

_NARROW = {"INT8": "INT32", "INT16": "INT32", "UINT8": "UINT32", "UINT16": "UINT32"}
"""Datatypes without a list, and the datatype whose list they use."""


def encode_contents(name: str, datatype: str, contents: Any, model_name: str, limits: BodyLimits) -> bytes:
    """The wire bytes of an input.

    Args:
        name: of the input.
        datatype: its wire name.
        contents: an ``InferTensorContents`` message; integers that are too large for 8 or 16 bits lose their upper bits.
        model_name: for messages.
        limits: bounds of a tensor.

    Returns:
        As many elements as the list has, none if every list is empty.

    Raises:
        InferenceError: INVALID_ARG; the values are in a list for another datatype, in two lists, or too many.
    """
    found: bytes | None = None
    for field, listed in _LISTS.items():
        values = getattr(contents, field)
        if not values:
            continue
        if found is not None:
            raise _error(name, model_name, ", binary data was already supplied.")
        if listed != _NARROW.get(datatype, datatype):
            raise _error(name, model_name, f" of type '{listed}', expected datatype '{datatype}'")
        found = _encode(name, datatype, listed, values, limits)
    return found or b""


def _encode(name: str, datatype: str, listed: str, values: Any, limits: BodyLimits) -> bytes:
    if datatype == "BYTES":
        limits.check_contents(name, sum(map(len, values)) + 4 * len(values))
        return encode_elements(list(values))
    limits.check_contents(name, len(values) * ITEMSIZE[datatype])
    return np.array(values, DATATYPES[listed].numpy).astype(DATATYPES[datatype].numpy).tobytes()


def _error(name: str, model_name: str, reason: str) -> InferenceError:
    return invalid(f"unexpected explicit tensor data for input tensor '{name}' for model '{model_name}'{reason}")
