"""The serialised form of BYTES tensors: each element is a 4-byte little-endian length and that many bytes."""

import struct
from typing import Any, Iterable, List, Union

from pybackend_wire import short_elements

Buffer = Union[bytes, bytearray, memoryview]

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = 4


class BytesTensorError(ValueError):
    """The bytes are not a serialised BYTES tensor."""


def encode_elements(elements: "Iterable[Any]") -> bytes:
    """Serialise elements in the order given.

    ``bytes`` stay as they are; every other element becomes ``str(element)`` in UTF-8 (so ``None`` becomes ``None``).
    """
    listed: List[Any] = elements if isinstance(elements, list) else list(elements)
    joined = short_elements.join(listed)
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

    Raises:
        BytesTensorError: the data ends in the middle of a length field or an element.
    """
    split = short_elements.split(data)
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
