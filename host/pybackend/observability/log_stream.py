"""The server's standard output and standard error. Writing never waits for the reader."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from pybackend.cores import start_thread

MOST_WAITING_BYTES = 4 * 1024 * 1024
"""Limit on bytes queued for a stopped terminal or a slow pipe reader. Beyond it, lines are dropped."""


class LogStream:
    """Writes lines to a descriptor.

    While the reader keeps up, the caller writes each line at once. Otherwise lines are queued; a thread writes them
    when there is room again, and then reports the number of dropped lines.
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
        """Write a line, immediately or when there is room."""
        with self._changed:
            rest = memoryview(line) if self._waiting else self._write_some(memoryview(line))
            if not rest:
                return
            if self._waiting_bytes + len(rest) > MOST_WAITING_BYTES:
                self._dropped_lines += 1
                return
            self._queue(rest)
            if self._writer is None:
                with suppress(RuntimeError):  # no thread can be started: the next line tries again
                    self._writer = start_thread(self._write_waiting, "pybackend-log")

    def flush(self, timeout_s: float) -> None:
        """Wait until the queue is empty, at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def _queue(self, data: memoryview) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _write_some(self, data: memoryview) -> memoryview:
        """Write as much as fits; returns the rest."""
        try:
            # A pipe with any room has room for a page.
            while data and self._room.poll(0):
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        except BlockingIOError:
            pass
        except OSError:  # the reader is gone for good or the disk is full: the server must continue
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
    """A descriptor for the same file with non-blocking writes, if it is a terminal.

    A terminal accepts part of a line and blocks the writer for the rest. The original descriptor is shared with the
    shell, so its flags must not change.
    """
    if stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.isatty(descriptor):
        try:
            return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            pass
    return descriptor
