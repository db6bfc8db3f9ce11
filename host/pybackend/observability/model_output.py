"""Output of a model instance on its way to the server's log: labels, the output budget, and the last lines."""

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from pybackend.observability.logging import wants_model_level, write_model_line
from pybackend.observability.repeated_failures import RepeatedFailures
from pybackend.observability.stub_output_lines import FailureNote, ModelLine

log = logging.getLogger(__name__)

LAST_LINES = 20
"""Number of lines kept for error reports about an instance."""

_LAST_LINE_CHARACTERS = 500

BURST_UNITS = 20_000
"""Burst of output. A line costs one unit, plus one per 100 bytes: 10,000 ordinary lines."""

UNITS_PER_S = 4_000
"""Sustained output: 2,000 ordinary lines per second, which cost a few per cent of a core."""

_UNIT_BYTES = 100


class ModelOutput:
    """The output of one instance, across restarts of its process.

    Without ``failures`` of its model, it is that of a process that executes nothing. ``about`` is what lines in JSON
    say of the instance, and ``dropped_lines`` count since it was created.
    """

    def __init__(self, instance_name: str, failures: RepeatedFailures | None = None) -> None:
        self._failures = failures or RepeatedFailures()
        self.instance_name = instance_name
        self.about: Mapping[str, str] = {}
        self.dropped_lines = 0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._units = float(BURST_UNITS)
        self._counted_s = time.monotonic()

    @property
    def tail(self) -> list[str]:
        """The last lines of the current or last process, without labels; long ones are cut."""
        return list(self._last)

    @property
    def last_words(self) -> str:
        """The tail, formatted as the end of a message; empty if there was no output."""
        return "\nIts last lines:\n" + "\n".join(f"  {line}" for line in self._last) if self._last else ""

    def labels(self, request_ids: str = "", trace_ids: str = "") -> dict[str, Any]:
        """Passed as ``extra`` with the server's own lines about the instance, and about these requests that it had."""
        about = {**self.about, "request_id": request_ids, "trace_id": trace_ids}
        return {"instance": self.instance_name, "about": about}

    def begin(self) -> None:
        """Handle the start of a new process."""
        self._last.clear()

    def affords(self, data: bytes) -> bool:
        """Whether the budget allows this output now; if so, it is charged."""
        now_s = time.monotonic()
        self._units = min(BURST_UNITS, self._units + (now_s - self._counted_s) * UNITS_PER_S)
        self._counted_s = now_s
        units = data.count(b"\n") + len(data) / _UNIT_BYTES
        if units > self._units:
            return False
        self._units -= units
        return True

    def write(self, line: ModelLine | FailureNote, pid: int, number: int) -> None:
        """Write a line to the log, if its level is enabled.

        ``number`` is that of a printed line, which has no position in a file.
        """
        if isinstance(line, FailureNote):
            self._failures.count(line, self.instance_name, self.about)
            return
        if line.failure and not self._failures.admits(line):
            return
        self._last.append(line.text[:_LAST_LINE_CHARACTERS])
        if line.pid is None:
            write_model_line(self.instance_name, pid, 0, "output", number, line.text, self.about)
        elif wants_model_level(line.level):
            about = {**self.about, "request_id": line.request_ids, "trace_id": line.trace_ids}
            write_model_line(self.instance_name, line.pid, line.level, line.file, line.line, line.text, about)
        else:
            self._units += 1 + len(line.text) / _UNIT_BYTES  # disabled lines cost nothing

    def say_dropped(self, lines: int, nbytes: int) -> None:
        """Write a log line about dropped output."""
        log.warning(
            "instance '%s' says more than the log takes: dropped %d lines (%d bytes)",
            self.instance_name,
            lines,
            nbytes,
            extra=self.labels(),
        )
