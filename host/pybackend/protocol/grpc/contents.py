"""Tensors given as lists of values in a gRPC message (``InferTensorContents``), converted to wire bytes.

Used by: ``request``. The lists are read from the message's bytes: an object for each number would cost a hundred times
as much. Large ones are cut out before protobuf reads the rest, so that the work can be done in steps.
"""

from struct import Struct

import numpy as np
import numpy.typing as npt

from pybackend.errors import InferenceError, invalid
from pybackend.protocol.grpc.message import (
    BYTES_FIELD,
    MOST_FIELDS,
    UnusualError,
    read_varint,
    unreadable_error,
    written_varint,
)
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.steps import Steps
from pybackend_wire.dtypes import DATATYPES

_NAMES = ("BOOL", "INT32", "INT64", "UINT32", "UINT64", "FP32", "FP64", "BYTES")
_LISTS = {number << 3 | BYTES_FIELD: name for number, name in enumerate(_NAMES, 1)}
"""The datatypes that the lists are named after, by their tags."""

_NARROW = {"INT8": "INT32", "INT16": "INT32", "UINT8": "UINT32", "UINT16": "UINT32"}
"""Datatypes without a list, and the datatype whose list they use."""

_ELEMENT = BYTES_FIELD | 8 << 3
_INPUT = _CONTENTS = BYTES_FIELD | 5 << 3
"""An input of a request, and the contents of an input."""

_SHAPE_NUMBER = 3 << 3
_CUT_BYTES = 16 * 1024
"""Contents up to this size are left to protobuf."""

_VARINT_BYTES_PER_STEP, _FIXED_BYTES_PER_STEP, _ELEMENTS_PER_STEP = 64 * 1024, 1024 * 1024, 4096
_LONGEST_VARINT = 10
_LENGTH = Struct("<I")


def cut_contents(head: bytes) -> tuple[bytes, dict[int, memoryview]]:
    """Take the large contents out of a request's head.

    Returns the head in which those contents are empty, and their bytes by the number of the input. Inputs whose
    fields are not as encoders write them keep theirs.
    """
    if len(head) <= _CUT_BYTES:
        return head, {}
    view = memoryview(head)
    pieces: list[bytes | memoryview] = []
    cut: dict[int, memoryview] = {}
    at = since = number = 0
    try:
        while at < len(head):
            tag = head[at]
            size, begin = read_varint(head, at + 1)
            end = begin + size
            if tag & 7 != BYTES_FIELD or end > len(head):
                return head, {}
            if tag == _INPUT:
                span = _contents_span(head, begin, end) if size > _CUT_BYTES else None
                if span is not None:
                    field, first, last = span
                    rest = b"".join((view[begin:field], bytes([_CONTENTS, 0]), view[last:end]))
                    pieces += [view[since:at], bytes([_INPUT]) + written_varint(len(rest)) + rest]
                    cut[number] = view[first:last]
                    since = end
                number += 1
            at = end
    except (IndexError, UnusualError):
        return head, {}
    return (b"".join((*pieces, view[since:])), cut) if cut else (head, {})


def _contents_span(head: bytes, at: int, end: int) -> tuple[int, int, int] | None:
    """The offsets of an input's contents: of their tag, of their first byte, and behind them.

    None if they are not plain.
    """
    found = None
    for _ in range(MOST_FIELDS):
        if at >= end:
            return found if at == end else None
        tag, field = head[at], at
        size, at = read_varint(head, at + 1)
        if tag == _SHAPE_NUMBER:  # a shape that is not packed
            continue
        if tag & 7 != BYTES_FIELD or (tag == _CONTENTS and found is not None):
            return None
        at += size
        if tag == _CONTENTS:
            found = field, at - size, at
    return None


def encode_contents(
    name: str, datatype: str, contents: bytes | memoryview, model_name: str, limits: BodyLimits
) -> Steps[bytearray]:
    """The wire bytes of an input.

    ``contents`` is a serialized ``InferTensorContents``; integers that are too large for 8 or 16 bits lose their
    upper bits. There are as many elements as the list has, none if every list is empty.
    """
    data = bytearray()
    found = ""
    at, end = 0, len(contents)
    while at < end:
        listed = _LISTS.get(contents[at])
        if listed is None:
            raise invalid(
                f"input '{name}' has contents that are not packed lists of values: write them as protobuf's encoders do, or "
                "send raw_input_contents"
            )
        begin, stop = _span(contents, at)
        if stop > begin or listed == "BYTES":
            _check_list(found, listed, name, datatype, model_name)
            found = listed
            if listed == "BYTES":
                stop = yield from _encode_elements(contents, at, data, name, limits)
            else:
                yield from _encode_numbers(contents[begin:stop], listed, data, name, datatype, limits)
        at = stop
    return data


def _check_list(found: str, listed: str, name: str, datatype: str, model_name: str) -> None:
    if found and found != listed:
        raise _error(name, model_name, ", binary data was already supplied.")
    if listed != _NARROW.get(datatype, datatype):
        raise _error(name, model_name, f" of type '{listed}', expected datatype '{datatype}'")


def _span(contents: bytes | memoryview, at: int) -> tuple[int, int]:
    """The offsets of a field's first byte and of the next field."""
    try:
        size, begin = read_varint(contents, at + 1)
    except (IndexError, UnusualError):
        raise unreadable_error("the length of a list of values is broken") from None
    if begin + size > len(contents):
        raise unreadable_error("a list of values is cut off")
    return begin, begin + size


def _encode_elements(
    contents: bytes | memoryview, at: int, data: bytearray, name: str, limits: BodyLimits
) -> Steps[int]:
    """Append all elements that follow each other; returns the offset behind them."""
    end = len(contents)
    pack = _LENGTH.pack
    while at < end and contents[at] == _ELEMENT:
        parts: list[bytes | memoryview] = []
        for _ in range(_ELEMENTS_PER_STEP):
            begin, at = _span(contents, at)
            parts += (pack(at - begin), contents[begin:at])
            if at >= end or contents[at] != _ELEMENT:
                break
        limits.check_contents(name, len(data) + sum(map(len, parts)))
        data += b"".join(parts)
        yield
    return at


def _encode_numbers(
    packed: bytes | memoryview, listed: str, data: bytearray, name: str, datatype: str, limits: BodyLimits
) -> Steps[None]:
    is_fixed = listed in {"FP32", "FP64"}
    wire, own = np.dtype(DATATYPES[listed].numpy), np.dtype(DATATYPES[datatype].numpy)
    if is_fixed and len(packed) % wire.itemsize:
        raise unreadable_error("a list of values is cut off")
    step = _FIXED_BYTES_PER_STEP if is_fixed else _VARINT_BYTES_PER_STEP
    at = 0
    while at < len(packed):
        end = min(len(packed), at + step)
        if is_fixed:
            values = np.frombuffer(packed[at:end], wire)
        else:
            end = _end_of_varints(packed, at, end)
            numbers = _varints(np.frombuffer(packed[at:end], np.uint8))
            values = numbers != 0 if listed == "BOOL" else numbers.astype(wire)
        limits.check_contents(name, len(data) + len(values) * own.itemsize)
        data += values.astype(own, copy=False).tobytes()
        at = end
        yield


def _end_of_varints(packed: bytes | memoryview, at: int, end: int) -> int:
    """The largest offset up to ``end`` at which a number ends."""
    for last in range(end, max(at, end - _LONGEST_VARINT), -1):
        if packed[last - 1] <= 0x7F:
            if last < end == len(packed):
                break
            return last
    raise unreadable_error("a number in a list of values is cut off, or too long")


def _varints(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The numbers in bytes; the last byte ends a number."""
    ends = np.flatnonzero(octets <= 0x7F)
    if len(ends) == len(octets):
        return octets.astype(np.uint64)
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT:
        raise unreadable_error("a number in a list of values is too long")
    low = (octets & 0x7F).astype(np.uint64)
    numbers = low[starts]
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        numbers[longer] |= low[starts[longer] + place] << np.uint64(7 * place)
    return numbers


def _error(name: str, model_name: str, reason: str) -> InferenceError:
    return invalid(f"unexpected explicit tensor data for input tensor '{name}' for model '{model_name}'{reason}")
