"""A server's directory for run-time files that must not stay; models can reach only the parts opened to them.

It lies below the server's own directory, which the rules for models' files hide, and everything in it is created and
removed through descriptors. It is locked as long as its server lives. A server that is killed leaves it behind
unlocked, and the next server removes it.
"""

import fcntl
import logging
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pybackend.sandbox.removal import open_directory, remove_tree

log = logging.getLogger(__name__)

_NAME = "rooms"
_TRIES = 20
_SAME_USER = (-1, -1)
PASSED_BY_OTHERS, _OWN = 0o711, 0o700
"""Modes of directories: others may use directories in it whose names they know, or nobody else may enter."""


def runtime_places(server_directory: Path, name: str = _NAME) -> list[Path]:
    """Return the places for servers' runtime directories, the best first.

    Args:
        server_directory: the server's own, which is hidden from models. If it is not writable, they lie in the
            system's directory for temporary files.
        name: what the directories are for.
    """
    return [server_directory / name, Path(tempfile.gettempdir()) / f"pybackend-{os.geteuid()}-{name}"]


def is_among_temporary_files(path: str) -> bool:
    """Whether a path lies in a runtime directory of this user that has no better place."""
    return path.startswith(os.path.join(os.path.realpath(tempfile.gettempdir()), f"pybackend-{os.geteuid()}-"))


class RuntimeDirectory:
    """A server's runtime directory. It exists on disk only from the first directory in it on.

    Used from several threads.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = tuple(places)
        self._path: Path | None = None
        self._descriptor = -1
        self._opening = threading.Lock()

    def make(self, mode: int = _OWN, *, owner: tuple[int, int] = _SAME_USER, within: Path | None = None) -> Path:
        """Create a directory with an unguessable name."""
        with self._opening:
            if self._path is None:
                self._open()
        path = (within or self._own_path()) / secrets.token_hex(8)
        parent = self._descend(path)
        try:
            os.mkdir(path.name, _OWN, dir_fd=parent)
            made = open_directory(path.name, parent)
            try:
                os.fchmod(made, mode)
                if owner != _SAME_USER:
                    os.fchown(made, *owner)
            finally:
                os.close(made)
        finally:
            os.close(parent)
        return path

    def remove(self, path: Path) -> None:
        """Remove a directory of this one with its contents; failures go to the log. Blocking."""
        if self._path is None:
            return  # all of it is gone
        try:
            parent = self._descend(path)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("cannot remove %s: %s", path, error.strerror or error)
            return
        try:
            _remove(path.name, parent, path)
        finally:
            os.close(parent)

    def contains(self, path: Path) -> bool:
        return self._path is not None and self._path in path.parents

    def close(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            with suppress(OSError):
                parent = open_directory(str(path.parent))
                try:
                    _remove(path.name, parent, path)
                finally:
                    os.close(parent)
            os.close(self._descriptor)

    def remove_abandoned(self) -> None:
        """Remove the runtime directories of servers that no longer run. Blocking."""
        for place in self.places:
            with suppress(OSError):  # it does not exist, or belongs to another user
                parent = _checked_place(place)
                try:
                    _remove_abandoned(parent, place)
                finally:
                    os.close(parent)

    def _own_path(self) -> Path:
        assert self._path is not None
        return self._path

    def _descend(self, path: Path) -> int:
        """Open the parent directory of a path in this directory without following links; returns a descriptor."""
        *between, _name = path.relative_to(self._own_path()).parts
        descriptor = os.dup(self._descriptor)
        for name in between:
            try:
                inner = open_directory(name, descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def _open(self) -> None:
        failure: OSError | None = None
        for place in self.places:
            try:
                self._open_in(place)
            except OSError as error:
                failure = failure or error
            else:
                return
        raise failure or FileNotFoundError("there is no place for private directories")

    def _open_in(self, place: Path) -> None:
        mode = PASSED_BY_OTHERS if os.geteuid() == 0 else _OWN  # models' processes may be other users
        place.mkdir(mode=mode, parents=True, exist_ok=True)
        parent = _checked_place(place)
        try:
            os.fchmod(parent, mode)  # regardless of the umask
            _remove_abandoned(parent, place)
            name, self._descriptor = _locked_directory(parent, mode)
        finally:
            os.close(parent)
        self._path = place / name


def _checked_place(place: Path) -> int:
    """Open a directory that only this user can change; returns a descriptor.

    Raises OSError if other users can change it, or it does not exist.
    """
    descriptor = open_directory(str(place))
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise PermissionError(f"{place} does not belong to this user alone")
    return descriptor


def _locked_directory(parent: int, mode: int) -> tuple[str, int]:
    """Create and lock a directory; returns its name and the descriptor that holds the lock."""
    for _ in range(_TRIES):
        name = secrets.token_hex(8)
        os.mkdir(name, _OWN, dir_fd=parent)
        try:
            descriptor = open_directory(name, parent)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, mode)
            if os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(descriptor)):
                return name, descriptor
        except OSError:
            pass
        os.close(descriptor)  # another server removed it as abandoned before it was locked
    raise FileExistsError("other servers remove each directory before it is locked")


def _remove_abandoned(parent: int, place: Path) -> None:
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        with suppress(OSError):  # it belongs to a running server, or is gone already
            lock = open_directory(name, parent)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(name, parent, place / name)
            finally:
                os.close(lock)


def _remove(name: str, parent: int, path: Path) -> None:
    try:
        remove_tree(name, parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror or error)


def scratch_places(server_directory: Path) -> list[Path]:
    """Return the places for private directories of models, the best first."""
    runtime = [Path("/run/pybackend")] if os.geteuid() == 0 else []
    return [*runtime, *runtime_places(server_directory)]
