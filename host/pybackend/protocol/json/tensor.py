"""Converts tensor elements between JSON values and wire bytes, for every datatype.

Used by: ``infer_request`` for inputs' ``data`` members, ``infer_response`` for outputs'. Values have the right JSON
type already; ``infer_document`` or msgspec checks it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from pybackend.inference.tensor import INT64_MAX, Buffer
from pybackend.protocol.limits import UINT64_MAX
from pybackend_wire.bytes_tensor import decode_elements, encode_elements
from pybackend_wire.dtypes import DATATYPES

_SMALL_COUNT = 64  # up to this count one struct call costs less than numpy (0.1 against 0.5 us at four elements)
_MAX_TYPED_DEPTH = 8  # deeper nesting is legal but takes the slow path

FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})
SIGNED = frozenset({"INT8", "INT16", "INT32", "INT64"})
UNSIGNED = frozenset({"UINT8", "UINT16", "UINT32", "UINT64"})


class _Structs(dict[int, Struct]):
    """Packers of one element format by element count, made on first use."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, count: int) -> Struct:
        packer = self[count] = Struct(f"<{count}{self._code}")
        return packer


_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_STRUCTS = {datatype: _Structs(code) for datatype, code in _CODES.items()}


# --- JSON to wire ---------------------------------------------------------------------------------------------------


def encode_values(datatype: str, values: Sequence[Any]) -> bytes:
    """Wire bytes of a flat list of elements.

    Integers are truncated to the datatype's width, floats rounded to its precision (too large ones become infinite).
    Values are ``bool`` for BOOL, ``int`` or ``float`` for floats, ``str`` for BYTES. Raises OverflowError for an
    integer beyond 64 bits of the datatype's signedness, UnicodeEncodeError for a lone surrogate.
    """
    if datatype == "BYTES":
        return encode_elements(values)
    if len(values) <= _SMALL_COUNT and datatype in _STRUCTS:
        try:
            return _STRUCTS[datatype][len(values)].pack(*values)
        except (struct_error, OverflowError):
            pass  # outside the datatype's range: numpy truncates or rounds it
    if datatype == "BOOL":
        return bytes(values)
    if datatype in FLOATS:
        return _encode_floats(datatype, values)
    wide = np.array(values, dtype=np.int64 if datatype in SIGNED else np.uint64)
    return wide.astype(_little_endian(datatype), copy=False).tobytes()


def packer(datatype: str, count: int) -> Callable[..., bytes] | None:
    """A function that makes wire bytes of ``count`` elements, as :func:`encode_values` does, and raises an error if one is out of range.

    None if only :func:`encode_values` can.
    """
    code = _CODES.get(datatype)
    return None if code is None else Struct(f"<{count}{code}").pack


def _encode_floats(datatype: str, values: Sequence[float]) -> bytes:
    wide = np.array(values, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        if datatype == "BF16":
            return _round_to_bf16(wide.astype(np.float32))
        return wide.astype(_little_endian(datatype), copy=False).tobytes()


def _round_to_bf16(values: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """The upper halves of the floats, rounded to nearest, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded[np.isnan(values)] = 0x7FC0
    return rounded.astype("<u2").tobytes()


def _little_endian(datatype: str) -> np.dtype[Any]:
    dtype = DATATYPES[datatype].numpy
    assert dtype is not None
    return dtype.newbyteorder("<")


def _element_type(datatype: str) -> Any:
    if datatype == "BYTES":
        return str
    if datatype == "BOOL":
        return bool
    if datatype in FLOATS:
        return float
    return int if datatype in SIGNED else Annotated[int, Meta(ge=0)]


def _list_decoder(datatype: str, depth: int) -> Callable[[Any], list[Any]]:
    kind: Any = _element_type(datatype)
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind).decode


_DECODE_FLAT: dict[str, Callable[[Any], list[Any]]] = {name: _list_decoder(name, 1) for name in DATATYPES}
_DECODE_NESTED: dict[tuple[str, int], Callable[[Any], list[Any]]] = {}


def encode_json(datatype: str, text: msgspec.Raw, count: int) -> bytes | None:
    """Wire bytes of a ``data`` member, directly from its JSON text; None if it needs the slow path.

    Raises ValueError or OverflowError if some element does not fit the datatype: the slow path reports which.
    """
    try:
        values = _DECODE_FLAT[datatype](text)
    except msgspec.ValidationError:
        nested = _decode_nested(datatype, text)
        if nested is None:
            return None
        values = nested
    if len(values) != count:
        return None
    return encode_values(datatype, values)


def _decode_nested(datatype: str, text: msgspec.Raw) -> list[Any] | None:
    """The elements of a nested list in order; None if the text is not a list, or too deep for typed decoding."""
    depth = opening_depth(bytes(memoryview(text)[:256]))
    if not 2 <= depth <= _MAX_TYPED_DEPTH:
        return None
    return decode_list(datatype, depth, text)


def decode_list(datatype: str, depth: int, text: msgspec.Raw | bytes) -> list[Any]:
    """The elements of lists nested to this depth, all of them, in order.

    Raises ValueError for any other text, and beyond the depth of typed decoding.
    """
    if not 1 <= depth <= _MAX_TYPED_DEPTH:
        raise ValueError("nested too deep for typed decoding")
    decode = _DECODE_NESTED.get((datatype, depth))
    if decode is None:
        decode = _DECODE_NESTED[datatype, depth] = _list_decoder(datatype, depth)
    values = decode(text)
    for _ in range(depth - 1):
        values = list(chain.from_iterable(values))
    return values


def array_decoder(datatype: str, depth: int) -> Callable[[bytes], list[Any]]:
    """A function that reads an array nested to this depth, as :func:`decode_list` does."""
    return _DECODE_FLAT[datatype] if depth == 1 else partial(decode_list, datatype, depth)


def opening_depth(text: bytes) -> int:
    """How many arrays open at the start."""
    compact = text.translate(None, b" \t\r\n")
    return len(compact) - len(compact.lstrip(b"["))


# --- Wire to JSON ---------------------------------------------------------------------------------------------------


def decode_values(datatype: str, data: Buffer) -> Sequence[Any]:
    """A tensor's elements as a flat sequence of JSON-compatible values.

    FP16, BF16 and FP32 become the double of the same value. Raises BytesTensorError if length fields do not fit
    the bytes, UnicodeDecodeError if an element is not UTF-8.
    """
    if datatype == "BYTES":
        return [element.decode() for element in decode_elements(data)]
    count = len(data) // DATATYPES[datatype].itemsize
    array: np.ndarray[Any, Any]
    if datatype == "BF16":
        array = (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    elif count <= _SMALL_COUNT:
        return _STRUCTS[datatype][count].unpack(data)
    elif datatype == "BOOL":
        # Any non-zero byte is true. numpy requires 0 or 1 in a bool array, so the bytes are not viewed as one.
        array = np.frombuffer(data, dtype=np.uint8) != 0
    else:
        array = np.frombuffer(data, dtype=_little_endian(datatype))
    values: list[Any] = array.tolist()
    return values


def unpacker(datatype: str, nbytes: int) -> Callable[[Buffer], Sequence[Any]]:
    """Reads tensors of this size as :func:`decode_values` does; for every datatype but BYTES."""
    count = nbytes // DATATYPES[datatype].itemsize
    if datatype in _STRUCTS and count <= _SMALL_COUNT:
        return _STRUCTS[datatype][count].unpack
    return partial(decode_values, datatype)


def is_json_integer(datatype: str, value: Any) -> bool:
    """True if the value is a JSON integer of the datatype's signedness, in 64 bits."""
    if type(value) is not int:
        return False
    return 0 <= value <= UINT64_MAX if datatype in UNSIGNED else -INT64_MAX - 1 <= value <= INT64_MAX
