"""What an instance of a model says, on its way into the server's log: its name, what it may say, and its last words."""

from __future__ import annotations

import logging
import time
from collections import deque

from pybackend.observability.logging import wants_model_level, write_model_line
from pybackend.observability.model_lines import ModelLine

log = logging.getLogger(__name__)

LAST_LINES = 20
"""How many lines are kept for whoever asks what an instance said last."""

_LAST_LINE_CHARACTERS = 500

BURST_UNITS = 20_000
"""What an instance may say at once. A line is one unit, and another one for every 100 bytes: 10,000 common lines."""

UNITS_PER_S = 4_000
"""What it may say in the long run: 2,000 common lines per second, a few per cent of a core."""

_UNIT_BYTES = 100


class ModelOutput:
    """The output of one instance, through all lives of its process.

    Attributes:
        instance_name: what its lines are labelled with.
        dropped_lines: how many lines were beyond what it may say, since it was created.
    """

    def __init__(self, instance_name: str) -> None:
        self.instance_name = instance_name
        self.dropped_lines = 0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._units = float(BURST_UNITS)
        self._counted_s = time.monotonic()

    @property
    def tail(self) -> list[str]:
        """The last lines of the process that runs, or ran last, without labels; long ones are cut."""
        return list(self._last)

    @property
    def last_words(self) -> str:
        """The tail as the end of a message; empty if nothing was said."""
        return "\nIts last lines:\n" + "\n".join(f"  {line}" for line in self._last) if self._last else ""

    def begin(self) -> None:
        """A new process speaks."""
        self._last.clear()

    def affords(self, data: bytes) -> bool:
        """Whether the instance may say this now; if so, it counts as said."""
        now_s = time.monotonic()
        self._units = min(BURST_UNITS, self._units + (now_s - self._counted_s) * UNITS_PER_S)
        self._counted_s = now_s
        units = data.count(b"\n") + len(data) / _UNIT_BYTES
        if units > self._units:
            return False
        self._units -= units
        return True

    def write(self, line: ModelLine, pid: int, number: int) -> None:
        """Write a line into the log, if lines of its level are wanted.

        Args:
            line: what was said.
            pid: the instance's process.
            number: of a printed line, which has no place in a file.
        """
        self._last.append(line.text[:_LAST_LINE_CHARACTERS])
        if line.pid is None:
            write_model_line(self.instance_name, pid, 0, "output", number, line.text)
        elif wants_model_level(line.level):
            write_model_line(self.instance_name, line.pid, line.level, line.file, line.line, line.text)
        else:
            self._units += 1 + len(line.text) / _UNIT_BYTES  # what nobody wants to see leaves its room to others

    def say_dropped(self, lines: int, nbytes: int) -> None:
        """Write into the log that there was more."""
        log.warning(
            "instance '%s' says more than the log takes: dropped %d lines (%d bytes)", self.instance_name, lines, nbytes
        )
