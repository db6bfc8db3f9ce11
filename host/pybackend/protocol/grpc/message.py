"""Cuts the bytes of a ``ModelInferRequest`` into the parts that recur and those that differ from request to request.

The first station of a gRPC request after its message is complete. Encoders write fields in the order of their numbers,
so a message is: model and version, id, parameters, inputs and outputs, raw tensors. A client that repeats a request
changes the id, perhaps the parameters, and the tensors. Without them the same bytes remain, by which ``request``
recognises a plan that it has made before. Only lengths are read here; protobuf reads the head of a request that is not
recognised.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError
from msgspec import Struct

from pybackend.errors import InferenceError, invalid
from pybackend.inference.tensor import Buffer
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.protocol.infer_plan import SMALL_BYTES
from pybackend.protocol.limits import BodyLimits

MODEL_NAME, MODEL_VERSION, ID, PARAMETERS, _INPUTS, _OUTPUTS, RAW = (
    number << 3 | 2 for number in range(1, 8)
)  # the tags of ModelInferRequest's fields: each has a number below 16 and is preceded by its length


MOST_FIELDS = 16_384
"""Of each kind at the top of a message: a million empty inputs need two megabytes of message, but a hundred of memory.
"""

BYTES_FIELD = 2
"""The wire type of fields that are preceded by their length, in the lowest bits of a tag."""

_VARINT, _FIXED64, _FIXED32 = 0, 1, 5

_LOAD_PARAMETER, _VALUE = 3 << 3 | BYTES_FIELD, 2 << 3 | BYTES_FIELD
_MOST_PARTS = 8
"""Limit of the fields of a parameter of a load request, which has a key and a value, and of the fields of its value."""


class InferMessage(Struct, eq=False):
    """The parts of one request message.

    An empty ``model_version`` means the newest ready one. ``parameters`` is a message that has nothing else, ``head``
    has neither id nor parameters nor raw tensors, and ``raw`` tensors are copies up to 4 KB, else views of the
    message.
    """

    model_name: str
    model_version: str
    id: str
    parameters: bytes
    head: bytes
    raw: list[Buffer]


class UnusualError(Exception):
    """The fields are not in the usual order, or broken."""


def split_message(data: bytes, limits: BodyLimits) -> InferMessage:
    """Cut a serialized ``ModelInferRequest``. Its inputs and outputs are not checked yet."""
    try:
        message = _split(data)
    except (UnusualError, IndexError, UnicodeDecodeError):
        message = _split(_in_usual_order(data, limits))
    limits.check_head(len(message.head) + len(message.parameters))
    return message


def parse_part(part: bytes) -> Any:
    """The ``ModelInferRequest`` that has the fields of a part only."""
    try:
        return message_class("inference.ModelInferRequest").FromString(part)
    except (DecodeError, UnicodeDecodeError) as error:  # UnicodeDecodeError: protobuf in plain Python
        raise unreadable_error(str(error)) from None


def unreadable_error(reason: str) -> InferenceError:
    """The error for bytes that are no ``ModelInferRequest``."""
    return InferenceError(f"the request cannot be read as an inference.ModelInferRequest message: {reason}")


def too_many_fields_error() -> InferenceError:
    """The error for a message of more than :data:`MOST_FIELDS` fields, or a part of it that has too many."""
    return invalid(f"the request has more than {MOST_FIELDS} inputs, outputs, parameters and tensors")


def _in_usual_order(data: bytes, limits: BodyLimits) -> bytes:
    """The same message as protobuf itself would write it, without unknown fields."""
    check_field_count(data)
    limits.check_head(len(data))
    message = parse_part(data)
    message.DiscardUnknownFields()
    written: bytes = message.SerializeToString()
    return written


def check_field_count(data: bytes) -> None:
    """Refuse a message of too many fields, before protobuf makes objects of them; broken ones are left to protobuf."""
    with suppress(IndexError, UnusualError):
        for _ in _fields(data, 0, len(data), MOST_FIELDS):
            pass


def check_load_fields(data: bytes) -> None:
    """As :func:`check_field_count`, for a ``RepositoryModelLoadRequest`` and the parameters within it."""
    with suppress(IndexError, UnusualError):
        for tag, begin, end in _fields(data, 0, len(data), MOST_FIELDS):
            if tag == _LOAD_PARAMETER:
                for part, at, stop in _fields(data, begin, end, _MOST_PARTS):
                    if part == _VALUE:
                        for _ in _fields(data, at, stop, _MOST_PARTS):
                            pass


def _fields(data: bytes, at: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Tag, begin and end of each field between two places."""
    count = 0
    while at < end:
        tag, at = read_varint(data, at)
        kind = tag & 7
        begin, size = at, 0
        if kind in {_VARINT, BYTES_FIELD}:
            value, begin = read_varint(data, at)
            size = value if kind == BYTES_FIELD else 0
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise unreadable_error("it has a group")
        count += 1
        if count > most:
            raise too_many_fields_error()
        at = begin + size
        yield tag, begin, min(at, end)


def _split(data: bytes) -> InferMessage:
    end = len(data)
    name, at = _text(data, 0, MODEL_NAME)
    version, at = _text(data, at, MODEL_VERSION)
    shared = at
    request_id, at = _text(data, at, ID)
    parameters = at
    at = tensors = _behind(data, at, PARAMETERS)
    at = _behind(data, at, _INPUTS)
    at = _behind(data, at, _OUTPUTS)
    head = data[:at] if shared == tensors else data[:shared] + data[tensors:at]
    raw: list[Buffer] = []
    view = None
    while at < end and data[at] == RAW and len(raw) < MOST_FIELDS:
        size = data[at + 1]
        begin = at + 2
        if size > 0x7F:
            size, begin = read_varint(data, at + 1)
        at = begin + size
        if size <= SMALL_BYTES:
            raw.append(data[begin:at])
        else:
            if view is None:
                view = memoryview(data)
            raw.append(view[begin:at])
    if at != end:
        raise UnusualError
    return InferMessage(name, version, request_id, data[parameters:tensors], head, raw)


def _text(data: bytes, at: int, tag: int) -> tuple[str, int]:
    """A text field and the offset of the next field; ``""`` if the next field is another one."""
    if at >= len(data) or data[at] != tag:
        return "", at
    size, begin = data[at + 1], at + 2
    if size > 0x7F:
        size, begin = read_varint(data, at + 1)
    end = begin + size
    if end > len(data):
        raise UnusualError
    return data[begin:end].decode(), end


def _behind(data: bytes, at: int, tag: int) -> int:
    """The offset behind all fields of this kind that begin at ``at``."""
    end = len(data)
    for _ in range(MOST_FIELDS):
        if at >= end or data[at] != tag:
            break
        size = data[at + 1]
        if size <= 0x7F:
            at += 2 + size
        else:
            size, at = read_varint(data, at + 1)
            at += size
    return at


def read_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """An unsigned number of up to ten bytes, and the offset behind it.

    Raises IndexError if the data ends first, UnusualError if the number is longer.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, at
        shift += 7
        if shift > 63:
            raise UnusualError


def written_varint(value: int) -> bytes:
    """A variable-length integer as :func:`read_varint` reads it; ``value`` is not negative."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
