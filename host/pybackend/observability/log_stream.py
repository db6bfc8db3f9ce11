"""Where the log's lines go: standard output, standard error or the file of ``--log-file``.

Writing never waits for a reader or a disk.
"""

import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pybackend.errors import SettingError
from pybackend.threads import start_thread

MOST_WAITING_BYTES = 4 * 1024 * 1024
"""Limit on bytes queued for a stopped terminal or a slow pipe reader. Beyond it, lines are dropped."""


class LogStream:
    """Writes lines to a descriptor.

    While the reader keeps up, the caller writes each line at once. Otherwise lines are queued; a thread writes them
    when there is room again, and then reports the number of dropped lines.
    """

    def __init__(self, descriptor: int, notice: Callable[[int], bytes]) -> None:
        self._descriptor = _without_waiting(descriptor)
        self._is_own = self._descriptor != descriptor
        self._notice = notice
        self._writable = select.poll()
        self._writable.register(self._descriptor, select.POLLOUT)
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

    def close(self, timeout_s: float) -> None:
        """Write what is queued, and let go of the descriptor. No line may follow."""
        self.flush(timeout_s)
        if self._is_own and self._writer is None:
            os.close(self._descriptor)

    def _queue(self, data: memoryview) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _write_some(self, data: memoryview) -> memoryview:
        """Write as much as fits; returns the rest."""
        try:
            # A pipe with any room has room for a page.
            while data and self._writable.poll(0):
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        except BlockingIOError:
            pass
        except OSError:  # the reader is gone for good or the disk is full: the server must continue
            return data[:0]
        return data

    def _write_waiting(self) -> None:
        while True:
            self._writable.poll()
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


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_MODE = 0o644
_LINE_FEED = 0x0A

_TOO_SLOW = "the disk was too slow for too long"


class LogFile:
    """Appends lines to a file.

    Lines that cannot be written are lost, and counted: the file says how many once it can be written again.
    ``notice`` makes the line that reports how many and why, and ``complain`` takes a sentence that the file itself
    cannot hold.
    """

    def __init__(self, path: Path, notice: Callable[[int, str], bytes], complain: Callable[[str], None]) -> None:
        self._path = path
        self._notice = notice
        self._complain = complain
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise SettingError(
                f"--log-file={path} cannot be written: {error.strerror}. Give a file in a directory that the "
                "server's user may write"
            ) from None
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lost_lines = 0
        self._reason = ""
        self._ends_a_line = True
        self._reopens = False
        self._closes = False
        self._is_writing = False
        self._writer: threading.Thread | None = None

    def write(self, lines: bytes) -> None:
        """Append whole lines soon."""
        with self._changed:
            if self._waiting_bytes + len(lines) > MOST_WAITING_BYTES:
                self._lost_lines += lines.count(b"\n")
                self._reason = self._reason or _TOO_SLOW
                return
            self._waiting.append(lines)
            self._waiting_bytes += len(lines)
            self._wake()

    def reopen(self) -> None:
        """Open the path again, because the file was moved: lines that come from now on go to the new one."""
        with self._changed:
            self._reopens = True
            self._wake()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is written, at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._reopens or self._is_writing), timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, and have the thread close the file. No line may follow."""
        with self._changed:
            self._closes = True
            self._wake()
        self.flush(timeout_s)

    def _wake(self) -> None:
        if self._writer is None:
            with suppress(RuntimeError):  # no thread can be started: the next line tries again
                self._writer = start_thread(self._write_all, "pybackend-log-file")
        self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._reopens or self._closes)
                if self._closes and not self._waiting:
                    os.close(self._descriptor)
                    return
                self._is_writing = True
                batch, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
                reopens, self._reopens = self._reopens, False
                lost, reason = self._lost_lines, self._reason
            if reopens:
                self._append(batch)
                batch = b""
                self._open_again()
            if lost and batch and self._append(self._notice(lost, reason), counts=False):
                with self._changed:
                    self._lost_lines -= lost
                    self._reason = ""
            self._append(batch)

    def _append(self, data: bytes, *, counts: bool = True) -> bool:
        """Write; False if some of it is lost, which counts unless it is only a notice."""
        rest = memoryview(data if self._ends_a_line or not data else b"\n" + data)
        try:
            while rest:
                written = os.write(self._descriptor, rest)
                self._ends_a_line = rest[written - 1] == _LINE_FEED
                rest = rest[written:]
        except OSError as error:
            reason = error.strerror or "it failed"
            with self._changed:
                is_first = not self._lost_lines
                self._lost_lines += bytes(rest).count(b"\n") if counts else 0
                self._reason = reason
            if is_first:
                self._complain(f"the log file {self._path} cannot be written: {reason}. Lines are lost until it can")
            return False
        return True

    def _open_again(self) -> None:
        try:
            descriptor = _open(self._path)
        except OSError as error:
            self._complain(
                f"the log file {self._path} cannot be opened again: {error.strerror}. Lines go on into the old file"
            )
            return
        os.close(self._descriptor)
        self._descriptor, self._ends_a_line = descriptor, True


def _open(path: Path) -> int:
    """A descriptor. Opening never waits for the reader of a named pipe; writing may, in the thread."""
    descriptor = os.open(path, _FLAGS, _MODE)
    os.set_blocking(descriptor, True)
    return descriptor
