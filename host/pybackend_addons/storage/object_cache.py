"""Cache of downloaded objects, keyed by path and ETag: each content is downloaded once per machine, for all servers on it.

In the cache's directory, ``objects/<repository>/<model>/<identity>`` is a complete object, and ``<identity>.part`` one that
is being downloaded. ``<model>.lock`` beside it is held while objects of that model are added, linked or removed, and
``<model>.json`` is the listing of its files when it was last loaded. ``<repository>/names.json`` has the names of all
models. Both serve a server that starts while the storage does not answer. Servers use an object by a hard link in their own copy of the model, so an object with one link is used by none.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from pybackend.author_files import read_regular
from pybackend.environment.file_lock import FileLock
from pybackend_addons.storage.remote_files import RemoteFile, RemoteModel
from pybackend_addons.storage.url import RepositoryUrl

_T = TypeVar("_T")

_OBJECTS, _LOCK, _LISTING, PART = "objects", ".lock", ".json", ".part"
_NAMES = f"names{_LISTING}"

KEPT_S = 30 * 24 * 3600.0
"""Objects of repositories that no server has opened for this long are removed."""

READABLE = 0o444

_MOST_LISTING_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class KnownNames:
    """The models of a repository at one moment."""

    names: tuple[str, ...]  # sorted
    listed_s: float  # the moment, in seconds since 1970


class Cancelled(Exception):
    """The result is no longer needed."""


class ObjectCache:
    """The objects of one repository."""

    def __init__(self, directory: Path, url: RepositoryUrl) -> None:
        self._all = directory / _OBJECTS
        self.directory = self._all / _digest(url.identity)

    def open(self) -> None:
        """Create the directory, note its use, and remove those of repositories that are not used any more. Blocking.

        Raises OSError: it cannot be created.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        status = self._all.stat()
        if status.st_uid not in {os.geteuid(), 0} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, "other users can write there, and models would run what they put")
        os.utime(self.directory)
        with suppress(OSError), os.scandir(self._all) as entries:
            for entry in entries:
                if time.time() - entry.stat().st_mtime > KEPT_S:
                    _remove_unused(Path(entry.path))

    def model(self, name: str) -> ModelObjects:
        return ModelObjects(self.directory / _digest(name))

    def remove_others(self, names: Collection[str]) -> None:
        """Remove the unused objects of models that the repository has no longer. Blocking."""
        kept = {_digest(name) for name in names}
        with suppress(OSError):
            for path in _models_in(self.directory):
                if path.name not in kept:
                    _remove_model(path)

    def keep_names(self, known: KnownNames) -> None:
        """Remember a listing for a start without the storage. Blocking. Raises OSError: the cache is not writable."""
        _write(self.directory / _NAMES, known)

    def kept_names(self) -> KnownNames | None:
        """The last listing of a server on this machine, None if there is none. Blocking."""
        return _read(self.directory / _NAMES, KnownNames)


class ModelObjects:
    """The objects of one model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: FileLock | None = None

    def take(self, cancelled: threading.Event) -> None:
        """Keep other servers, and other loads, away until :meth:`release`. Blocking: waits for them.

        Raises Cancelled: ``cancelled`` was set first. Raises OSError: the directory is not writable.
        """
        lock = FileLock(_lock_of(self.directory))
        try:
            if not lock.wait_alone(cancelled) or cancelled.is_set():
                raise Cancelled
            self.directory.mkdir(exist_ok=True)
            self._remove_drafts()  # of a server that was killed
        except BaseException:  # whatever ended it: others wait for the lock
            lock.release()
            raise
        self._lock = lock

    def release(self) -> None:
        """Let others work on the objects, and remove what is incomplete. Blocking."""
        if self._lock is not None:
            self._remove_drafts()
            self._lock.release()
            self._lock = None

    def _remove_drafts(self) -> None:
        for draft in self.directory.glob(f"*{PART}"):
            draft.unlink(missing_ok=True)

    def path(self, file: RemoteFile) -> Path:
        return self.directory / file.identity

    def has(self, file: RemoteFile) -> bool:
        """True if an object is here. One of another size was damaged by a power failure."""
        with suppress(OSError):
            return self.path(file).stat().st_size == file.nbytes
        return False

    def keep_listing(self, model: RemoteModel) -> None:
        """Remember the files of the model, as :meth:`ObjectCache.keep_names`; the lock must be held."""
        _write(_listing_of(self.directory), model)

    def kept_listing(self) -> RemoteModel | None:
        """The files of the model when it was last loaded on this machine, None if it never was. Blocking."""
        return _read(_listing_of(self.directory), RemoteModel)

    def prune(self) -> None:
        """Remove objects that no server uses; the lock must be held. Blocking."""
        _remove_unlinked(self.directory)


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)


def _listing_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LISTING)


def _models_in(repository: Path) -> list[Path]:
    return [path for path in repository.iterdir() if path.suffix not in {_LOCK, _LISTING, PART}]


def _write(path: Path, value: object) -> None:
    draft = path.with_name(f"{secrets.token_hex(8)}{PART}")
    try:
        draft.write_bytes(msgspec.json.encode(value))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(read_regular(path, _MOST_LISTING_BYTES), type=kind)
    except (OSError, msgspec.MsgspecError, RecursionError):  # none was written, or a power failure has damaged it
        return None


def _remove_unlinked(directory: Path) -> None:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_nlink == 1:
                os.unlink(entry.path)


def _remove_model(directory: Path) -> bool:
    """Remove the unused objects of a model, unless a server works on them; True if nothing is left."""
    with suppress(OSError):
        lock = FileLock(_lock_of(directory))
        try:
            if lock.take_alone():
                _remove_unlinked(directory)
                directory.rmdir()  # fails if there are more
                _listing_of(directory).unlink(missing_ok=True)
                _lock_of(directory).unlink()
                return True
        finally:
            lock.release()
    return False


def _remove_unused(repository: Path) -> None:
    """Remove a repository's objects if no server uses any."""
    kept = [path for path in _models_in(repository) if not _remove_model(path)]
    if not kept:
        shutil.rmtree(repository, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
