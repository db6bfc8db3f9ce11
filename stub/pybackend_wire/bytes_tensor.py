"""The serialised form of BYTES tensors: each element is a 4-byte little-endian length and that many bytes.

numpy encodes and decodes tensors of many short elements, the common case of text, if it can prove that the result is
right; otherwise a loop does the work.
"""

import struct
from typing import Any, Generator, Iterable, List, Optional, Tuple, Union

import numpy as np

Buffer = Union[bytes, bytearray, memoryview]

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = 4

_FEWEST_JOINED, _FEWEST_SPLIT_BYTES = 128, 1024
"""Fewer elements are joined faster by a loop, and smaller tensors split."""

_MOST_SHORT_BYTES = 8 * 1024 * 1024
"""Size limit of a tensor: the temporary arrays take about five times as much memory."""

_SEPARATOR = b"\0\0\0\0"
_SHORT = 256
"""Shorter lengths have three zero bytes, by which their fields are found."""


def _short_starts(data: Buffer, cut: bool = False) -> "Optional[np.ndarray[Any, Any]]":
    """Return the offsets of the length fields of a serialised tensor whose elements are all shorter than 256 bytes.

    With ``cut``, the data may end within an element; a length field that is cut off is left out.
    """
    if not _FEWEST_SPLIT_BYTES <= len(data) <= _MOST_SHORT_BYTES:
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


def _split_short(data: Buffer) -> "Optional[List[bytes]]":
    """Split a serialised tensor into its elements, if all of them are shorter than 256 bytes and have no zero byte."""
    starts = _short_starts(data)
    if starts is None:
        return None
    octets = np.frombuffer(data, np.uint8).copy()
    octets[starts] = 0
    if np.count_nonzero(octets) + 4 * len(starts) != len(octets):
        return None
    return octets.tobytes().split(_SEPARATOR)[1:]


def _join_short(elements: "List[Any]") -> Optional[bytes]:
    """Serialise elements, if all of them are bytes without a zero byte."""
    if len(elements) < _FEWEST_JOINED:
        return None
    try:
        joined = bytearray(_SEPARATOR + _SEPARATOR.join(elements))
    except TypeError:  # some of them are not bytes
        return None
    if len(joined) > _MOST_SHORT_BYTES:
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


class BytesTensorError(ValueError):
    """The bytes are not a serialised BYTES tensor."""


def encode_elements(elements: "Iterable[Any]") -> bytes:
    """Serialise elements in the order given.

    ``bytes`` stay as they are; every other element becomes ``str(element)`` in UTF-8 (so ``None`` becomes ``None``).
    """
    listed: List[Any] = elements if isinstance(elements, list) else list(elements)
    joined = _join_short(listed)
    if joined is not None:
        return joined
    chunks: List[bytes] = []
    append = chunks.append
    pack = _LENGTH.pack
    for element in listed:
        data = element if type(element) is bytes else _as_bytes(element)
        append(pack(len(data)))
        append(data)
    return b"".join(chunks)


def _as_bytes(element: Any) -> bytes:
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    return str(element).encode("utf-8")


def decode_elements(data: Buffer) -> "List[bytes]":
    """Split a serialised BYTES tensor into its elements.

    Raises BytesTensorError if the data ends in the middle of a length field or an element.
    """
    split = _split_short(data)
    if split is not None:
        return split
    raw = data if isinstance(data, bytes) else bytes(data)
    unpack = _LENGTH.unpack_from
    elements: List[bytes] = []
    append = elements.append
    offset, end = 0, len(raw)
    while offset < end:
        if end - offset < LENGTH_BYTES:
            raise BytesTensorError("Invalid bytes tensor data: incomplete length field")
        start = offset + LENGTH_BYTES
        offset = start + unpack(raw, offset)[0]
        if offset > end:
            raise BytesTensorError("Invalid bytes tensor data: string extends beyond buffer")
        append(raw[start:offset])
    return elements


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
    """Count the short elements that begin in the next 256 KB.

    Also returns the offset behind them. 0 if it is not certain.
    """
    window = memoryview(data)[offset : offset + _BYTES_PER_STEP]
    starts = _short_starts(window, cut=True)
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
