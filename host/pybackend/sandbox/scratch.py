"""Private directories for models' processes: made with them, removed after them, or by the next server if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

log = logging.getLogger(__name__)

_LOCK = "lock"


class ScratchRoom:
    """The directory in which one server makes those of its models; nothing is on disk before the first one is."""

    def __init__(self, parents: list[Path] | None = None) -> None:
        self._parents = parents if parents is not None else _places()
        self._room: Path | None = None
        self._lock = -1
        self._numbers = count(1)
        self._opening = threading.Lock()  # models are loaded side by side, in threads

    def make(self, uid: int, gid: int, within: str = "") -> str:
        """A new directory that only this user can use; -1 for the user of this process.

        Args:
            uid: the user.
            gid: his group.
            within: where it is to be, "" for anywhere; from :meth:`make_common`.

        Raises:
            OSError: there is nowhere to make one.
        """
        path = self._new(within)
        path.mkdir(mode=0o700)
        if uid >= 0:
            os.chown(path, uid, gid)
        return str(path)

    def make_common(self) -> str:
        """A new directory for directories of several users, which only this process can make there.

        Raises:
            OSError: there is nowhere to make one.
        """
        path = self._new()
        path.mkdir()
        path.chmod(0o711)
        return str(path)

    def _new(self, within: str = "") -> Path:
        with self._opening:
            if self._room is None:
                self._open()
        assert self._room is not None
        return Path(within or self._room) / str(next(self._numbers))

    def remove(self, path: str) -> None:
        """Remove a directory and all that a model has put there. Its processes are gone."""
        _remove(Path(path))

    def close(self) -> None:
        """Remove everything."""
        if self._room is not None:
            _remove(self._room)
            os.close(self._lock)
            self._room = None

    @property
    def parents(self) -> list[str]:
        """Where the rooms of servers are."""
        return [str(parent) for parent in self._parents]

    def _open(self) -> None:
        failure: OSError | None = None
        for parent in self._parents:
            try:
                self._open_in(parent)
            except OSError as error:
                failure = error
            else:
                return
        raise failure or FileNotFoundError("there is no directory for temporary files")

    def _open_in(self, parent: Path) -> None:
        parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = parent.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{parent} is not this user's alone")
        parent.chmod(0o711)  # whatever the mask says: models have to pass it
        with _alone_in(parent):  # else another server could take a room for one that was left before it is locked
            for room in list(parent.iterdir()):
                _remove_if_left(room)
            room = Path(tempfile.mkdtemp(prefix="", dir=parent))
            room.chmod(0o711)
            self._lock = os.open(room / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._room = room


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _places() -> list[Path]:
    name = "pybackend" if os.geteuid() == 0 else f"pybackend-{os.geteuid()}"
    runtime = [Path("/run") / name] if os.geteuid() == 0 else []
    return [*runtime, Path(tempfile.gettempdir()) / f"{name}-scratch"]


def _remove_if_left(room: Path) -> None:
    """Remove the room of a server that is gone: nobody holds its lock. One without a lock is just being made."""
    try:
        lock = os.open(room / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        _remove(room)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except RecursionError:  # directories in directories, more than Python can count
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--", str(path)], check=False, capture_output=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)
