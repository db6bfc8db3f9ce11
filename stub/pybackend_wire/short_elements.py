"""Encodes and decodes BYTES tensors of many short elements, the common case of text, with numpy instead of a loop.

Every function here returns None if it cannot prove that its result is right; then a loop does the work.
"""

from typing import Any, List, Optional, Union

import numpy as np

FEWEST_ELEMENTS = 16
"""Below this number a loop is as fast."""

MOST_BYTES = 8 * 1024 * 1024
"""Size limit of a tensor: the temporary arrays take about five times as much memory."""

_SEPARATOR = b"\0\0\0\0"
_SHORT = 256
"""Shorter lengths have three zero bytes, by which their fields are found."""


def element_starts(data: "Union[bytes, bytearray, memoryview]", cut: bool = False) -> "Optional[np.ndarray[Any, Any]]":
    """Return the offsets of the length fields of a serialised tensor whose elements are all shorter than 256 bytes.

    With ``cut``, the data may end within an element; a length field that is cut off is left out.
    """
    if not FEWEST_ELEMENTS * 4 <= len(data) <= MOST_BYTES:
        return None
    octets = np.frombuffer(data, np.uint8)
    zero = octets == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    if not len(starts) or starts[0]:
        return None
    # Elements may contain three zeros too: these are the length fields only if each one leads to the next.
    ends = starts + octets[starts] + 4
    if not np.array_equal(ends[:-1], starts[1:]):
        return None
    if ends[-1] < len(octets) - 3 if cut else ends[-1] != len(octets):
        return None
    return starts


def split(data: "Union[bytes, bytearray, memoryview]") -> "Optional[List[bytes]]":
    """Split a serialised tensor into its elements, if all of them are shorter than 256 bytes and have no zero byte."""
    starts = element_starts(data)
    if starts is None:
        return None
    octets = np.frombuffer(data, np.uint8).copy()
    octets[starts] = 0
    if np.count_nonzero(octets) + 4 * len(starts) != len(octets):
        return None
    return octets.tobytes().split(_SEPARATOR)[1:]


def join(elements: "List[Any]") -> Optional[bytes]:
    """Serialise elements, if all of them are bytes without a zero byte."""
    if len(elements) < FEWEST_ELEMENTS:
        return None
    try:
        joined = bytearray(_SEPARATOR + _SEPARATOR.join(elements))
    except TypeError:  # some of them are not bytes
        return None
    if len(joined) > MOST_BYTES:
        return None
    octets = np.frombuffer(joined, np.uint8)
    zeros = np.flatnonzero(octets == 0)
    if len(zeros) != 4 * len(elements):
        return None
    starts = zeros[::4]
    lengths = np.diff(starts, append=len(octets)) - 4
    for place in range(1 if lengths.max() < _SHORT else 4):
        octets[starts + place] = lengths >> (8 * place) & 0xFF
    return bytes(joined)
