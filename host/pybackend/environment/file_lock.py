"""Locks between processes that end with whoever holds them, kill -9 included."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

_LOOK_EVERY_S = 0.05


class FileLock:
    """A lock on a file that may be removed by whoever holds it alone.

    Args:
        path: the file; made if it is missing and can be made.

    Raises:
        OSError: it can neither be opened nor made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open(path)

    def take_shared(self) -> bool:
        """Hold it beside others; False if one holds it alone."""
        return self._take(fcntl.LOCK_SH)

    def take_alone(self) -> bool:
        """Be the only one who holds it; False if that cannot be now."""
        return self._take(fcntl.LOCK_EX)

    def wait_alone(self, cancelled: threading.Event) -> bool:
        """Become the only one who holds it, or the first to find ``cancelled`` set: then it is False."""
        while not self.take_alone():
            if cancelled.wait(_LOOK_EVERY_S):
                return False
        return True

    def wait_shared(self, cancelled: threading.Event) -> bool:
        """Hold it beside others, or be the first to find ``cancelled`` set: then it is False."""
        while not self.take_shared():
            if cancelled.wait(_LOOK_EVERY_S):
                return False
        return True

    def _take(self, kind: int) -> bool:
        while True:
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if self._is_current():
                return True
            # Whoever held it has removed the file: others lock the one that came after.
            os.close(self._descriptor)
            self._descriptor = _open(self._path)

    def _is_current(self) -> bool:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(self._descriptor))

    def release(self) -> None:
        """Let others have it; this object is of no more use."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except OSError:
        return os.open(path, os.O_RDONLY | flags)  # of a cache that somebody else has filled
