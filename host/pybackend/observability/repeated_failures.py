"""Failures of one model on their way to the log: the first of a kind in whole, then how many more there were."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from pybackend.observability.logging import write_model_line
from pybackend.observability.stub_output_lines import FailureNote, ModelLine

COUNTED_S = 1.0
"""How long failures like one that was written are counted, before the log says how many there were."""

MOST_KINDS = 64
"""Most kinds of failure that are counted at a time; stubs choose their numbers."""

_ERROR = 2
"""Number of ``pb_utils.Logger.ERROR``."""


@dataclass
class _Kind:
    """Failures with the same text.

    ``count`` is the number of notes since the last line about it, less the failure whose text was written.
    """

    timer: asyncio.TimerHandle
    count: int
    is_written: bool
    last: FailureNote
    instance_name: str
    about: Mapping[str, str]


class RepeatedFailures:
    """Counts the failures of all instances of one model version.

    Every failed execution sends a note. The first also sends its text; later ones with the same text only count, and a
    line says once a second how many there were. No failure is lost: each is written or counted.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, _Kind] = {}

    def count(self, note: FailureNote, instance_name: str, about: Mapping[str, str]) -> None:
        kind = self._kinds.get(note.failure)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                self._end(next(iter(self._kinds)))
            timer = asyncio.get_running_loop().call_later(COUNTED_S, self._on_time, note.failure)
            self._kinds[note.failure] = kind = _Kind(timer, 0, False, note, instance_name, about)
        kind.count += 1
        kind.last, kind.instance_name = note, instance_name

    def admits(self, line: ModelLine) -> bool:
        """Whether the text of a failure appears in the log. Its note came before."""
        kind = self._kinds.get(line.failure)
        if kind is None or kind.is_written:
            return kind is None
        kind.is_written = True
        kind.count -= 1
        return True

    def close(self) -> None:
        """Write what was counted so far: the instances have ended."""
        for failure in list(self._kinds):
            self._end(failure)

    def _on_time(self, failure: int) -> None:
        kind = self._kinds[failure]
        if not kind.count:
            del self._kinds[failure]
            return
        self._write(kind)
        kind.count, kind.is_written = 0, True  # more of them within the next second are counted too
        kind.timer = asyncio.get_running_loop().call_later(COUNTED_S, self._on_time, failure)

    def _end(self, failure: int) -> None:
        kind = self._kinds.pop(failure)
        kind.timer.cancel()
        if kind.count:
            self._write(kind)

    def _write(self, kind: _Kind) -> None:
        note = kind.last
        text = f"... and {kind.count} more like it in the last second; last {note.who}: {note.what}"
        write_model_line(kind.instance_name, note.pid, _ERROR, note.file, note.line, text, kind.about)
