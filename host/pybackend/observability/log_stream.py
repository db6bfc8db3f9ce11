"""Standard output and standard error of the server, written without ever waiting for whoever reads them."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable

MOST_WAITING_BYTES = 4 * 1024 * 1024
"""How much may wait for a terminal that is held, or a pipe whose reader is slow; what comes then is dropped."""


class LogStream:
    """Writes lines to a descriptor.

    While its reader keeps up, a line is written at once, by the caller. Else lines queue up, a thread writes them when
    there is room again, and then says how many found none.

    Args:
        descriptor: where lines go.
        notice: makes the line that says how many were dropped.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], bytes]) -> None:
        self._descriptor = _without_waiting(descriptor)
        self._notice = notice
        self._room = select.poll()
        self._room.register(self._descriptor, select.POLLOUT)
        self._changed = threading.Condition()
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._dropped_lines = 0
        self._writer: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Write a line, now or when there is room."""
        with self._changed:
            rest = memoryview(line) if self._waiting else self._write_some(memoryview(line))
            if not rest:
                return
            if self._waiting_bytes + len(rest) > MOST_WAITING_BYTES:
                self._dropped_lines += 1
                return
            self._queue(rest)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_waiting, name="pybackend-log", daemon=True)
                self._writer.start()

    def flush(self, timeout_s: float) -> None:
        """Wait until nothing waits any more, but not for longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def _queue(self, data: memoryview) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _write_some(self, data: memoryview) -> memoryview:
        """Write as much as there is room for; returns the rest."""
        try:
            # Where there is room for anything, there is room for a page.
            while data and self._room.poll(0):
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        except BlockingIOError:
            pass
        except OSError:  # nobody will ever read it, or the disk is full: the server goes on all the same
            return data[:0]
        return data

    def _write_waiting(self) -> None:
        while True:
            self._room.poll()
            with self._changed:
                data = self._waiting.popleft()
                rest = self._write_some(data)
                self._waiting_bytes -= len(data) - len(rest)
                if rest:
                    self._waiting.appendleft(rest)
                elif not self._waiting and self._dropped_lines:
                    self._queue(memoryview(self._notice(self._dropped_lines)))
                    self._dropped_lines = 0
                if not self._waiting:
                    self._writer = None
                    self._changed.notify_all()
                    return


def _without_waiting(descriptor: int) -> int:
    """A way to the same file on which a write never waits, if the descriptor is a terminal.

    A terminal takes part of a line and makes the writer wait with the rest. The descriptor itself is shared with the
    shell, which must not find it changed.
    """
    if stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.isatty(descriptor):
        try:
            return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            pass
    return descriptor
