"""Splits the output of a model's process into lines: printed text, and log records between it."""

import json
from dataclasses import dataclass
from typing import Any

from pybackend_wire.log_record import MARK, MOST_LINE, MOST_PIECE_BYTES, MOST_PIECE_CHARACTERS, MOST_PIECES

_MOST_UNFINISHED = 64
"""Long messages that may be in transit at the same time: one for each logging thread."""

_RECORD_TYPES = (int, int, int, str, int, int, int, str, int, str, str)
_NOTE_TYPES = (int, str, int, int, str, str)


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One line of a model's output.

    A record may have several lines. Printed text has neither ``pid`` nor ``file``; ``failure`` is 0 unless it is about
    one.
    """

    text: str
    pid: int | None = None
    level: int = 0
    file: str = ""
    line: int = 0
    failure: int = 0
    request_ids: str = ""
    trace_ids: str = ""


@dataclass(frozen=True, slots=True)
class FailureNote:
    """The note that an execution has failed; see :func:`pybackend_wire.log_record.encode_failure_note`."""

    pid: int
    file: str
    line: int
    failure: int
    who: str
    what: str


class LineAssembler:
    """Assembles lines from bytes.

    A carriage return restarts the line, as on a terminal: only the final state of a progress bar remains.
    """

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._searched = 0
        self._text = bytearray()
        """Text whose line feed has not arrived yet."""
        self._cut_bytes = 0
        self._messages: dict[tuple[int, int], list[str]] = {}
        """The pieces received so far of incomplete messages, by process and thread."""

    def feed(self, data: bytes) -> None:
        self._waiting += data

    @property
    def has_partial(self) -> bool:
        """True if text without a line feed remains after :meth:`take` has returned all lines."""
        return bool(self._waiting or self._text)

    def take(self) -> ModelLine | FailureNote | None:
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
        """The incomplete line, None if it is empty or blank."""
        line = self._printed(self.take_bytes())
        return line if line.text else None

    def take_bytes(self) -> bytearray:
        """The bytes that have not been examined yet."""
        waiting, self._waiting, self._searched = self._waiting, bytearray(), 0
        return waiting

    def end_here(self) -> None:
        """Mark a loss of data: the current line ends here, and incomplete messages are discarded."""
        begun = self._waiting.rfind(b"\n") + 1
        mark = self._waiting.rfind(MARK, begun)
        if mark >= 0:
            del self._waiting[mark:]
        if len(self._waiting) > begun or self._text:
            self._waiting += b"\n"
        self._messages.clear()

    def _line(self, raw: bytearray) -> ModelLine | FailureNote | None:
        mark = raw.rfind(MARK)
        record = _decoded(raw[mark + 1 :]) if mark >= 0 else None
        if record is None:
            return self._printed(raw)
        self._keep_text(raw[:mark])  # its line feed may follow
        return FailureNote(*record) if len(record) == len(_NOTE_TYPES) else self._logged(*record)

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
        """No line is complete: remember the searched range, and keep no more text than a line may show."""
        self._searched = len(self._waiting)
        if self._searched > MOST_LINE:
            mark = self._waiting.rfind(MARK, -MOST_PIECE_BYTES)  # of an incomplete record
            end = self._searched if mark < 0 else mark
            self._keep_text(self._waiting[:end])
            del self._waiting[:end]
            self._searched -= end

    def _logged(
        self,
        pid: int,
        thread: int,
        level: int,
        file: str,
        line: int,
        number: int,
        count: int,
        text: str,
        failure: int,
        request_ids: str,
        trace_ids: str,
    ) -> ModelLine | None:
        if count > 1:
            whole = self._whole((pid, thread), number, count, text)
            if whole is None:
                return None
            text = whole
        return ModelLine(text, pid, level, file, line, failure, request_ids, trace_ids)

    def _whole(self, sender: tuple[int, int], number: int, count: int, text: str) -> str | None:
        """A message sent in pieces, once its last piece has arrived and none is missing."""
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
    """The fields of a record, None if it is malformed."""
    if len(raw) > MOST_PIECE_BYTES:
        return None
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if type(fields) is not list or tuple(map(type, fields)) not in {_RECORD_TYPES, _NOTE_TYPES}:
        return None
    return tuple(fields) if all(type(field) is str or 0 <= field < 2**63 for field in fields) else None
