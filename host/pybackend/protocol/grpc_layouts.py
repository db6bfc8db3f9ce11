"""Cuts messages whose beginning is known: a client that repeats a request changes nothing before its tensors' bytes.

In front of ``grpc_message`` for small messages. Their length says how long the beginning is, its bytes where everything lies.
"""

from __future__ import annotations

from typing import NamedTuple

from pybackend.protocol.grpc_message import RAW, InferMessage, split_message
from pybackend.protocol.infer_plan import SMALL_BYTES
from pybackend.protocol.limits import BodyLimits

LONGEST_BEGINNING_BYTES = 4096
MOST_LAYOUTS = 512
"""With the longest beginning this limits the memory to 4 MB, a key and its parts; beyond, everything is forgotten."""

_MOST_TENSORS = 16


class _Tensor(NamedTuple):
    """A raw tensor's place.

    Attributes:
        tag: its tag and length, which must precede it.
        tag_at: their offset.
        begin: offset of its first byte.
        end: the offset behind it.
    """

    tag: bytes
    tag_at: int
    begin: int
    end: int


class _Layout(NamedTuple):
    """The parts of a message, without its tensors' bytes.

    Attributes:
        parts: everything but the raw tensors.
        end: of the first raw tensor, which begins where the known bytes end.
        others: the raw tensors after it.
    """

    parts: InferMessage
    end: int
    others: tuple[_Tensor, ...]


class MessageLayouts:
    """The layouts of recent messages that have neither an id nor parameters."""

    def __init__(self) -> None:
        self._beginnings: dict[int, int] = {}  # bytes up to the first raw tensor's, by the message's length
        self._layouts: dict[bytes, _Layout] = {}

    def __len__(self) -> int:
        """The layouts that are remembered, or the lengths if these are more."""
        return max(len(self._layouts), len(self._beginnings))

    def split(self, data: bytes, limits: BodyLimits) -> InferMessage:
        """Cut a serialized ``ModelInferRequest``; see :func:`~pybackend.protocol.grpc_message.split_message`."""
        begin = self._beginnings.get(len(data))
        if begin is not None:
            layout = self._layouts.get(data[:begin])
            if layout is not None:
                known, end, others = layout
                raw = [data[begin:end]]
                for tag, tag_at, start, stop in others:
                    if not data.startswith(tag, tag_at):
                        break
                    raw.append(data[start:stop])
                    end = stop
                else:
                    if end == len(data):
                        return InferMessage(known.model_name, known.model_version, "", b"", known.head, raw)  # type: ignore[arg-type]
        message = split_message(data, limits)
        if message.raw and not message.id and not message.parameters:
            self._remember(data, message)
        return message

    def _remember(self, data: bytes, message: InferMessage) -> None:
        sizes = [len(tensor) for tensor in message.raw]
        if max(sizes) > SMALL_BYTES or len(sizes) > _MOST_TENSORS:
            return
        tensors: list[_Tensor] = []
        end = len(data)
        for size in reversed(sizes):  # they are the message's last fields, if it is in the usual order
            begin = end - size
            tag_at = begin - (2 if size <= 0x7F else 3)
            if tag_at < 0 or data[tag_at] != RAW:
                return
            tensors.insert(0, _Tensor(data[tag_at:begin], tag_at, begin, end))
            end = tag_at
        first, *others = tensors
        if first.begin > LONGEST_BEGINNING_BYTES or data[: first.tag_at] != message.head:
            return
        if len(self._layouts) >= MOST_LAYOUTS or len(self._beginnings) >= MOST_LAYOUTS:
            self._layouts.clear()
            self._beginnings.clear()
        parts = InferMessage(message.model_name, message.model_version, "", b"", message.head, [])
        self._beginnings[len(data)] = first.begin
        self._layouts[data[: first.begin]] = _Layout(parts, first.end, tuple(others))
