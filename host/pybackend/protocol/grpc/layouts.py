"""Cuts messages whose beginning is known: a client that repeats a request changes nothing before its tensors' bytes but the id and parameters.

In front of ``message`` for small messages. Their length says how long the beginning is, its bytes where everything lies. Strings have other sizes
each time: once a beginning has come with two, its tensors are cut one by one.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

from pybackend.protocol.grpc.message import (
    ID,
    MODEL_NAME,
    MODEL_VERSION,
    PARAMETERS,
    RAW,
    InferMessage,
    split_message,
    written_varint,
)
from pybackend.protocol.infer_plan import SMALL_BYTES
from pybackend.protocol.limits import BodyLimits
from pybackend.recurring import Recurring

LONGEST_BEGINNING_BYTES = 4096
MOST_LAYOUTS = 512
_ANY_BYTES = -1
"""In place of the length of messages whose tensors may have any sizes."""

_MOST_OF_ONE_LENGTH = 4
"""Beginnings of different lengths that messages of one length may have, so that clients who take turns are all known.
"""

_LENGTH_BYTES = 8
_MOST_TENSORS = 16
_LONGEST_TEXT_BYTES = 0x7F
"""The longest name, version, id and parameter in front of which the length is one byte."""
_MOST_PARAMETERS = 8

_RAW_TAG = bytes((RAW,))


class MessageLayout:
    """A message whose id, parameters and tensors may vary.

    The ``head`` has neither id nor parameters nor raw tensors, of which there are ``count``; if it ``is_unsized``, they
    may have any sizes. ``unpack`` yields the raw tensors, and between two of them the tag and length of the second,
    which are ``tags``. ``user_data`` is a place for a front end, which this module never touches.
    """

    __slots__ = ("count", "head", "is_unsized", "model_name", "model_version", "tags", "unpack", "user_data")

    def __init__(self, message: InferMessage, sizes: Sequence[int], tags: Sequence[bytes]) -> None:
        self.model_name = message.model_name
        self.model_version = message.model_version
        self.head = message.head
        self.count, self.is_unsized = len(message.raw), False
        self.user_data: Any = None
        self.tags = tuple(tags)
        others = (f"{len(tag)}s{size}s" for tag, size in zip(tags, sizes[1:], strict=True))
        self.unpack = Struct(f"{sizes[0]}s" + "".join(others)).unpack_from


Known = tuple[MessageLayout, str, bytes, tuple[bytes, ...]]
"""A message that was recognised: its layout, its id (``""`` if it has none), its parameters as they were sent, and its
raw tensors."""


class MessageLayouts:
    """The layouts of recent messages."""

    def __init__(self) -> None:
        # Bytes up to the first raw tensor's, by the message's length without id and parameters; and layouts by that
        # length and these bytes. If the tensors may have any sizes, these are the bytes of the head, and the length is
        # none.
        self._beginnings: Recurring[int, tuple[int, ...]] = Recurring(MOST_LAYOUTS, _MOST_OF_ONE_LENGTH * _LENGTH_BYTES)
        self._layouts: Recurring[tuple[int, bytes], MessageLayout] = Recurring(MOST_LAYOUTS, LONGEST_BEGINNING_BYTES)

    def __len__(self) -> int:
        """The layouts that are remembered, or the lengths if these are more."""
        return max(len(self._layouts), len(self._beginnings))

    def find(self, data: bytes, start: int, stop: int) -> Known | None:
        """Recognise a serialized ``ModelInferRequest`` that lies between two offsets; None if it is not known."""
        nbytes = stop - start
        for size in self._beginnings.get(nbytes, ()):
            begin = start + size
            layout = self._layouts.get((nbytes, data[start:begin]))
            if layout is not None:
                fields = layout.unpack(data, begin)
                return (layout, "", b"", fields[::2]) if fields[1::2] == layout.tags else None
        return self._find_unsized(data, start, stop) or self._find_apart(data, start, stop)

    def _find_unsized(self, data: bytes, start: int, stop: int) -> Known | None:
        """The same for a message without id and parameters whose tensors may have any sizes."""
        for size in self._beginnings.get(_ANY_BYTES, ()):
            layout = self._layouts.get((_ANY_BYTES, data[start : start + size]))
            if layout is not None:
                raw = _raw_tensors(data, start + size, stop)
                return (layout, "", b"", raw) if raw is not None and len(raw) == layout.count else None
        return None

    def _find_apart(self, data: bytes, start: int, stop: int) -> Known | None:
        """The same for a message that has an id or parameters."""
        own, parameters, after = _own_fields(data, start, stop)
        if own == after:
            return None
        nbytes = stop - start - (after - own)
        for beginning in self._beginnings.get(nbytes, ()):
            begin = after - own + start + beginning
            layout = self._layouts.get((nbytes, data[start:own] + data[after:begin]))
            if layout is not None:
                fields = layout.unpack(data, begin)
                raw = fields[::2] if fields[1::2] == layout.tags else None
                break
        else:
            if _ANY_BYTES not in self._beginnings:
                return None
            unsized = self._find_unsized(data[start:own] + data[after:stop], 0, nbytes)
            if unsized is None:
                return None
            layout, *_, raw = unsized
        if raw is None:
            return None
        try:
            return layout, data[own + 2 : parameters].decode(), data[parameters:after], raw
        except UnicodeDecodeError:
            return None

    def split(self, data: bytes, limits: BodyLimits) -> tuple[InferMessage, MessageLayout | None]:
        """Cut a serialized ``ModelInferRequest``; see :func:`~pybackend.protocol.grpc.message.split_message`.

        Returns its parts, and its layout if that was known.
        """
        found = self.find(data, 0, len(data))
        if found is not None:
            layout, request_id, parameters, raw = found
            name, version = layout.model_name, layout.model_version
            return InferMessage(name, version, request_id, parameters, layout.head, list(raw)), layout
        message = split_message(data, limits)
        if message.raw:
            self._remember(message)
        return message, None

    def _remember(self, message: InferMessage) -> None:
        """Remember a message as encoders write it: without an id, its raw tensors behind all else.

        If its head comes again, but not its length, it is one whose tensors may have any sizes.
        """
        sizes = [len(tensor) for tensor in message.raw]
        if max(sizes) > SMALL_BYTES or len(sizes) > _MOST_TENSORS:
            return
        first_tag, *tags = [_RAW_TAG + written_varint(size) for size in sizes]
        beginning = message.head + first_tag
        if len(beginning) > LONGEST_BEGINNING_BYTES:
            return
        nbytes = len(beginning) + sum(sizes) + sum(map(len, tags))
        is_new = self._put(nbytes, beginning, MessageLayout(message, sizes, tags))
        if is_new and self._layouts.comes_again(message.head):
            layout = MessageLayout(message, sizes, tags)
            layout.is_unsized = True
            self._put(_ANY_BYTES, message.head, layout)

    def _put(self, nbytes: int, beginning: bytes, layout: MessageLayout) -> bool:
        """Remember a layout; False if there is one already."""
        others = [size for size in self._beginnings.get(nbytes, ()) if size != len(beginning)]
        lengths = len(beginning), *others[: _MOST_OF_ONE_LENGTH - 1]
        self._beginnings.remember(nbytes, lengths, _LENGTH_BYTES * len(lengths))
        if (nbytes, beginning) in self._layouts:
            return False
        self._layouts.remember((nbytes, beginning), layout, len(beginning))
        return True


def _own_fields(data: bytes, start: int, stop: int) -> tuple[int, int, int]:
    """Where a request's own fields lie, behind the model's name and version: the id, the parameters, and all else."""
    at, none = start, (start, start, start)
    try:
        if data[at] == MODEL_NAME:
            if data[at + 1] > _LONGEST_TEXT_BYTES:
                return none
            at += 2 + data[at + 1]
        if data[at] == MODEL_VERSION:
            if data[at + 1] > _LONGEST_TEXT_BYTES:
                return none
            at += 2 + data[at + 1]
        own = at
        if data[at] == ID and data[at + 1] <= _LONGEST_TEXT_BYTES:
            at += 2 + data[at + 1]
        parameters, left = at, _MOST_PARAMETERS
        while data[at] == PARAMETERS and data[at + 1] <= _LONGEST_TEXT_BYTES and left:
            at += 2 + data[at + 1]
            left -= 1
    except IndexError:  # nothing follows
        return none
    return none if at > stop else (own, parameters, at)


def _raw_tensors(data: bytes, at: int, stop: int) -> tuple[bytes, ...] | None:
    """The raw tensors that fill the rest of a message; None if there is anything else, or if they are long."""
    raw = []
    while at < stop - 1:
        size = data[at + 1]
        begin = at + 2
        if size > 0x7F and begin < stop:
            size += (data[begin] << 7) - 0x80
            begin += 1
        if data[at] != RAW or size > SMALL_BYTES:
            return None
        at = begin + size
        raw.append(data[begin:at])
    return tuple(raw) if at == stop else None
