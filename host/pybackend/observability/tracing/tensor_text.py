"""The elements of a recorded tensor as text."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from pybackend.observability.tracing.request_trace import RecordedTensor
from pybackend_wire.dtypes import DATATYPES

_LENGTH = struct.Struct("<I")


def described(tensor: RecordedTensor) -> dict[str, str]:
    """A tensor as records of both forms show it."""
    shape = ",".join(map(str, tensor.shape))
    return {"name": tensor.name, "data": elements_text(tensor), "shape": shape, "dtype": tensor.datatype}


def elements_text(tensor: RecordedTensor) -> str:
    """The elements that were recorded, separated by commas."""
    if tensor.datatype == "BYTES":
        return ",".join(_strings(tensor.data))
    if tensor.datatype == "BF16":
        halves = np.frombuffer(tensor.data[: len(tensor.data) // 2 * 2], np.uint16)
        values = (halves.astype(np.uint32) << 16).view(np.float32)
    else:
        dtype = DATATYPES[tensor.datatype].numpy
        assert dtype is not None  # only BF16 has none
        values = np.frombuffer(tensor.data[: len(tensor.data) // dtype.itemsize * dtype.itemsize], dtype)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    return ",".join(map(str, values.tolist()))


def _strings(data: bytes) -> Iterator[str]:
    """The strings of serialised elements, as far as they are whole."""
    at = 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        if at > len(data):
            return
        yield data[at - size : at].decode("utf-8", "backslashreplace")
