"""From the bytes that a model's process prints to lines: printed text, and the records of its log between it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pybackend_wire.log_record import MARK, MOST_LINE, MOST_PIECE_BYTES, MOST_PIECE_CHARACTERS, MOST_PIECES

_MOST_UNFINISHED = 64
"""Long messages that may be on their way at the same time: one for each thread that logs one."""

_RECORD_TYPES = (int, int, int, str, int, int, int, str)


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One line that a model said.

    Attributes:
        text: without its line feed; a record's may hold several lines.
        pid: process that logged it, None for printed text.
        level: number of a ``pb_utils.Logger.LogLevel``.
        file: name of the source file, empty for printed text.
        line: in that file.
    """

    text: str
    pid: int | None = None
    level: int = 0
    file: str = ""
    line: int = 0


class LineAssembler:
    """Takes bytes as they come and gives lines.

    A carriage return takes a line back to its beginning, as on a terminal: of a progress bar its last state is left.
    """

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._searched = 0
        self._text = bytearray()
        """Text whose line feed has not come yet."""
        self._cut_bytes = 0
        self._messages: dict[tuple[int, int], list[str]] = {}
        """By process and thread, the pieces that came so far of a message that is not whole yet."""

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        self._waiting += data

    @property
    def has_partial(self) -> bool:
        """True if there is text that no line feed has ended, once :meth:`take` has given all lines."""
        return bool(self._waiting or self._text)

    def take(self) -> ModelLine | None:
        """The next line, None if none is complete."""
        while True:
            end = self._waiting.find(b"\n", self._searched)
            if end < 0:
                self._shorten()
                return None
            raw = self._waiting[:end]
            del self._waiting[: end + 1]
            self._searched = 0
            line = self._line(raw)
            if line is not None:
                return line

    def take_partial(self) -> ModelLine | None:
        """What there is of a line that nobody has ended, if it is anything to see."""
        line = self._printed(self.take_bytes())
        return line if line.text else None

    def take_bytes(self) -> bytearray:
        """What nobody has looked at yet."""
        waiting, self._waiting, self._searched = self._waiting, bytearray(), 0
        return waiting

    def end_here(self) -> None:
        """What follows is lost: text ends where it does, and what was to become a message is none."""
        begun = self._waiting.rfind(b"\n") + 1
        mark = self._waiting.rfind(MARK, begun)
        if mark >= 0:
            del self._waiting[mark:]
        if len(self._waiting) > begun or self._text:
            self._waiting += b"\n"
        self._messages.clear()

    def _line(self, raw: bytearray) -> ModelLine | None:
        mark = raw.rfind(MARK)
        record = _decoded(raw[mark + 1 :]) if mark >= 0 else None
        if record is None:
            return self._printed(raw)
        self._keep_text(raw[:mark])  # its line feed may still come
        return self._logged(*record)

    def _printed(self, raw: bytearray) -> ModelLine:
        self._keep_text(raw)
        text = self._text.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")
        if self._cut_bytes:
            text += f"... ({self._cut_bytes} more bytes)"
        self._text.clear()
        self._cut_bytes = 0
        return ModelLine(text)

    def _keep_text(self, raw: bytearray) -> None:
        room = MOST_LINE - len(self._text)
        self._text += raw[:room]
        self._cut_bytes += max(0, len(raw) - room)

    def _shorten(self) -> None:
        """No line is complete: remember how far that was looked for, and keep no more of it than is shown."""
        self._searched = len(self._waiting)
        if self._searched > MOST_LINE:
            mark = self._waiting.rfind(MARK, -MOST_PIECE_BYTES)  # of a record that is not all there
            end = self._searched if mark < 0 else mark
            self._keep_text(self._waiting[:end])
            del self._waiting[:end]
            self._searched -= end

    def _logged(
        self, pid: int, thread: int, level: int, file: str, line: int, number: int, count: int, text: str
    ) -> ModelLine | None:
        if count > 1:
            whole = self._whole((pid, thread), number, count, text)
            if whole is None:
                return None
            text = whole
        return ModelLine(text, pid, level, file, line)

    def _whole(self, sender: tuple[int, int], number: int, count: int, text: str) -> str | None:
        """A message that travels in pieces, once the last one is there and none is missing."""
        pieces = self._messages.pop(sender, []) if number else []
        if len(pieces) != number or count > MOST_PIECES or len(text) > MOST_PIECE_CHARACTERS:
            return None
        pieces.append(text)
        if len(pieces) == count:
            return "".join(pieces)
        if len(self._messages) >= _MOST_UNFINISHED:
            self._messages.pop(next(iter(self._messages)))
        self._messages[sender] = pieces
        return None


def _decoded(raw: bytearray) -> tuple[Any, ...] | None:
    """The fields of a record, None if it is none."""
    if len(raw) > MOST_PIECE_BYTES:
        return None
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if type(fields) is not list or tuple(map(type, fields)) != _RECORD_TYPES:
        return None
    return tuple(fields) if all(type(field) is str or 0 <= field < 2**63 for field in fields) else None
