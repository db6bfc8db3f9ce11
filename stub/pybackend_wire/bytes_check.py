"""The check of a BYTES tensor that arrived: as many elements as its shape says, and none cut off.

The host checks the tensors that it receives, the stub those that lie in clients' shared memory.
"""

import struct
from typing import Generator, Tuple

import numpy as np

from pybackend_wire.bytes_tensor import LENGTH_BYTES, Buffer
from pybackend_wire.short_elements import element_starts

_LENGTH = struct.Struct("<I")
_ELEMENTS_PER_STEP, _LENGTHS_PER_STEP, _BYTES_PER_STEP = 16 * 1024, 1024 * 1024, 256 * 1024
_UNIFORM_COUNT = 64  # from this many elements on, the check for equal lengths pays off


def element_problem(data: Buffer, wanted: int, about: str) -> "Generator[None, None, str]":
    """Walk the length fields; yields where other work may run.

    Args:
        about: the tensor, for the sentence that is returned.

    Returns:
        The mistake, as a sentence; ``""`` if there is none.
    """
    size = len(data)
    is_uniform = yield from _is_uniform(data, size, wanted)
    if is_uniform:
        return ""
    unpack = _LENGTH.unpack_from
    offset = found = 0
    looped = _ELEMENTS_PER_STEP  # since numpy last found no more of them
    while offset < size:
        if looped == _ELEMENTS_PER_STEP:
            count, behind = _short_elements(data, offset)
            if count and found + count <= wanted and behind <= size:
                found, offset = found + count, behind
                if offset < size:
                    yield
                continue
            looped = 0
        if size - offset < LENGTH_BYTES:
            return (
                f"incomplete string length indicator {about}, expecting {LENGTH_BYTES} bytes but only "
                f"{size - offset} bytes available. Please make sure the string length indicator is in one buffer."
            )
        found += 1
        looped += 1
        if looped == _ELEMENTS_PER_STEP:
            yield
        if found > wanted:
            return f"unexpected number of string elements {found} {about}, expecting {wanted}"
        length = unpack(data, offset)[0]
        offset += LENGTH_BYTES + length
        if offset > size:
            return (
                f"incomplete string data {about}, expecting string of length {length} but only "
                f"{size - offset + length} bytes available."
            )
    return "" if found == wanted else f"expected {wanted} string elements {about}, got {found}"


def _short_elements(data: Buffer, offset: int) -> "Tuple[int, int]":
    """Count the short elements that begin in the next 256 KB; also returns the offset behind them. 0 if it is not certain."""
    window = memoryview(data)[offset : offset + _BYTES_PER_STEP]
    starts = element_starts(window, cut=True)
    if starts is None:
        return 0, offset
    last = int(starts[-1])
    return len(starts), offset + last + LENGTH_BYTES + window[last]


def _is_uniform(data: Buffer, size: int, count: int) -> "Generator[None, None, bool]":
    """Whether these are ``count`` elements of equal length; numpy checks this 50 times faster than a loop."""
    if count < _UNIFORM_COUNT or size % count or size // count < LENGTH_BYTES:
        return False
    stride = size // count
    lengths: np.ndarray = np.ndarray((count,), dtype="<u4", buffer=data, strides=(stride,))
    for begin in range(0, count, _LENGTHS_PER_STEP):
        if not (lengths[begin : begin + _LENGTHS_PER_STEP] == stride - LENGTH_BYTES).all():
            return False
        if count > _LENGTHS_PER_STEP:
            yield
    return True
