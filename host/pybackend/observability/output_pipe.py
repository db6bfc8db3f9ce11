"""The pipe for a model process's output and log records, read on the event loop.

The process never waits for the log, because the pipe is always drained. Output within the instance's budget is kept and
written in small portions, so that requests do not wait for the log either. Output beyond the budget is discarded at
memory speed, and counted.
"""

import asyncio
import os
import time
from collections.abc import Callable

from pybackend.observability.model_output import LAST_LINES, ModelOutput
from pybackend.observability.stub_output_lines import FailureNote, LineAssembler, ModelLine

_READ_BYTES = 256 * 1024

_WRITING_S, _REST_S = 0.0005, 0.002
"""How long lines are written at a time, and how long requests then have the loop for themselves."""

_DROPPING_S = 1.0
"""How long all output is dropped once the budget is exhausted: one notice for all of it, then contiguous lines."""

_DRAINING_S = 0.001
"""Polling interval of a pipe whose output is dropped: 256 MB per second, for a few per cent of a core."""

_PARTIAL_S = 1.0
"""How long an unterminated line may wait before it is written as it is."""

_LAST_WRITING_S = 0.02
_MOST_LEFT_BYTES = 1024 * 1024
_LAST_BYTES = 8192


class OutputPipe:
    """The output of one process.

    Owns the descriptor, a pipe's read end. ``output`` receives the lines; it must be set before :meth:`start`.
    """

    def __init__(self, descriptor: int, pid: int) -> None:
        os.set_blocking(descriptor, False)
        self.output = ModelOutput("stub")
        self._descriptor = descriptor
        self._pid = pid
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines = LineAssembler()
        self._printed = 0
        self._read_s = 0.0
        self._in_line = False
        """True if the rest of a dropped line is still to come."""
        self._dropping = False
        self._dropped_lines = 0
        self._dropped_bytes = 0
        self._dropped_last = b""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.output.begin()
        loop.add_reader(self._descriptor, self._on_readable)

    def read_now(self) -> None:
        """Read all available output, so that it precedes the host's next log line."""
        data = self._read() if self._descriptor >= 0 else None
        if data:
            self._take_in(data)
            self._write_lines()

    def finish(self) -> None:
        """Handle the end of the process: write its last output and close, even if a child holds the other end open."""
        if self._descriptor < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        for timer in self._timers.values():
            timer.cancel()
        self._loop = None
        left_bytes = 0
        while left_bytes < _MOST_LEFT_BYTES and (data := self._read()):
            left_bytes += len(data)
            self._take_in(data)
        os.close(self._descriptor)
        self._descriptor = -1
        self._write_last()

    # Reading

    def _read(self) -> bytes | None:
        """Available bytes; empty at the end, None if there are none yet."""
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return None

    def _on_readable(self) -> None:
        data = self._read()
        if data is None:
            return
        if data:
            self._take_in(data)
            self._write_lines()
        if self._dropping or not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        if self._dropping:
            self._later("drain", _DRAINING_S, self._read_on)

    def _read_on(self) -> None:
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_readable)

    def _take_in(self, data: bytes) -> None:
        self._read_s = time.monotonic()
        if self._in_line and not self._dropping:
            _, end, data = data.partition(b"\n")
            self._in_line = not end
        if not self._dropping and self.output.affords(data):
            self._lines.feed(data)
        else:
            self._drop(data)

    # Writing

    def _write_lines(self) -> None:
        """Write available lines for a short time, then yield to requests and continue."""
        if "write" in self._timers:
            return
        end_s = time.monotonic() + _WRITING_S
        while (line := self._lines.take()) is not None:
            self._write(line)
            if time.monotonic() >= end_s:
                self._later("write", _REST_S, self._write_lines)
                return
        if self._lines.has_partial:
            self._later("partial", _PARTIAL_S, self._write_partial)

    def _write_partial(self) -> None:
        idle_s = time.monotonic() - self._read_s
        if idle_s < _PARTIAL_S:
            self._later("partial", _PARTIAL_S - idle_s, self._write_partial)
        elif "write" not in self._timers:
            line = self._lines.take_partial()
            if line is not None:
                self._write(line)

    def _write(self, line: ModelLine | FailureNote) -> None:
        self._printed += line.pid is None
        self.output.write(line, self._pid, self._printed)

    def _write_last(self) -> None:
        end_s = time.monotonic() + _LAST_WRITING_S
        rest = bytearray()
        while (line := self._lines.take()) is not None:
            self._write(line)
            if time.monotonic() >= end_s:
                rest = self._lines.take_bytes()
                break
        if rest or self._dropping:
            self._count_dropped(rest)
            self._write_end_of(rest + self._dropped_last)
        else:
            partial = self._lines.take_partial()
            if partial is not None:
                self._write(partial)

    # Dropping

    def _drop(self, data: bytes) -> None:
        if not self._dropping:
            self._dropping = True
            self._later("drop", _DROPPING_S, self._end_dropping)
            rest, end, after = data.partition(b"\n")  # of a line whose beginning was accepted
            if end:
                self._lines.feed(rest + end)
                data = after
            else:
                self._lines.end_here()
        self._count_dropped(data)
        self._dropped_last = (self._dropped_last + data)[-_LAST_BYTES:]
        self._in_line = bool(data) and not data.endswith(b"\n")

    def _count_dropped(self, data: bytes | bytearray) -> None:
        lines = data.count(b"\n")
        self._dropped_lines += lines
        self._dropped_bytes += len(data)
        self._printed += lines
        self.output.dropped_lines += lines

    def _end_dropping(self) -> None:
        if "write" in self._timers:  # earlier output comes first
            self._later("drop", _REST_S, self._end_dropping)
            return
        if self._in_line:
            self._dropped_lines += 1
            self._printed += 1
            self.output.dropped_lines += 1
        self.output.say_dropped(self._dropped_lines, self._dropped_bytes)
        self._dropping = False
        self._dropped_lines = self._dropped_bytes = 0
        self._dropped_last = b""

    def _write_end_of(self, dropped: bytearray) -> None:
        """Write the last dropped lines after all, preceded by the number of missing ones: last words matter most."""
        end = bytes(dropped[-_LAST_BYTES:])
        if len(end) == _LAST_BYTES:  # it starts in the middle of a line
            end = end.partition(b"\n")[2] or end
        last = LineAssembler()
        last.feed(end)
        lines = []
        while (line := last.take()) is not None:
            lines.append(line)
        partial = last.take_partial()
        if partial is not None:
            lines.append(partial)
        del lines[:-LAST_LINES]
        saved = len(lines) - (partial is not None)
        self.output.dropped_lines -= saved
        self._printed -= saved
        self.output.say_dropped(self._dropped_lines - saved, self._dropped_bytes)
        for line in lines:
            self._write(line)

    def _later(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        """Schedule a call, unless one of this name is scheduled."""
        if self._loop is not None and name not in self._timers:
            self._timers[name] = self._loop.call_later(delay_s, self._fire, name, callback)

    def _fire(self, name: str, callback: Callable[[], None]) -> None:
        del self._timers[name]
        callback()
