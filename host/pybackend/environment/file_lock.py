"""Locks between processes, released by the kernel when the holder dies, kill -9 included."""

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

_LOOK_EVERY_S = 0.05


class FileLock:
    """A lock on a file. The exclusive holder may remove the file.

    Args:
        path: the file; created if it is missing and the directory is writable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open(path)

    def take_shared(self) -> bool:
        """Take a shared lock; False if another process holds it exclusively."""
        return self._take(fcntl.LOCK_SH)

    def take_alone(self) -> bool:
        """Take the lock exclusively; False if another process holds it."""
        return self._take(fcntl.LOCK_EX)

    def keep_over_exec(self) -> None:
        """Let a program that replaces this process hold the lock until it ends."""
        os.set_inheritable(self._descriptor, True)

    def wait_alone(self, cancelled: threading.Event) -> bool:
        """Wait for the exclusive lock; False if ``cancelled`` is set first."""
        return self._wait(fcntl.LOCK_EX, cancelled)

    def wait_shared(self, cancelled: threading.Event) -> bool:
        """Wait for a shared lock; False if ``cancelled`` is set first."""
        return self._wait(fcntl.LOCK_SH, cancelled)

    def _wait(self, kind: int, cancelled: threading.Event) -> bool:
        while not self._take(kind):
            if cancelled.wait(_LOOK_EVERY_S):
                return False
        return True

    def _take(self, kind: int) -> bool:
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._path), os.fstat(self._descriptor)):
                    return True
            # The previous holder removed the file, and others lock its successor.
            os.close(self._descriptor)
            self._descriptor = _open(self._path)

    def release(self) -> None:
        """Release the lock. This object cannot be used again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except OSError:
        return os.open(path, os.O_RDONLY | flags)  # a cache written by another user
