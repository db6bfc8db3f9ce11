"""Home directories of models at ``standard``: kept on disk from one start of the server to the next, one for each model.

They lie below the server's own directory, which the rules for models' files hide. Libraries keep downloads and compiled
code in the home, so its files must be open to the next processes of the model, whose users have other numbers: all of
them are in the group of the home, which changes its number only while nobody uses it, and may do what the owners may.

Beside each home lies a lock, which a server holds as long as one of its models uses the home, and in which the directory
of the model is written.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path

from pybackend.environment.file_lock import FileLock
from pybackend.sandbox.removal import open_directory, remove_tree
from pybackend.sandbox.runtime_directory import PASSED_BY_OTHERS

log = logging.getLogger(__name__)

UNUSED_S = 7 * 24 * 3600.0
"""The home of a model that is gone is kept for so long after its last use."""

_TRIM_EVERY_S = 3600.0
_LOCK = ".lock"
_DIGEST_BYTES = 8
_LONGEST_NAME = 50
"""Characters of a model's directory in the name of its home: each may have four bytes, and a file name 255."""

_NOT_CHANGED = -1
_BLOCK_BYTES = 512
_MOST_COUNTED = 1_000_000
_MOST_LEVELS = 64
"""Deeper directories are neither counted nor handed over: no library makes such."""

_MOST_DONE = 100_000
"""Directories of a home that are remembered; the server goes through further ones at every load."""

_TICK_NS = 2_000_000_000
"""A directory that changed so short a time ago may change again without another time of change."""

_OF_GROUP = stat.S_ISGID | 0o770
"""Files that are created in such a directory get its group."""


@dataclass(eq=False)
class Home:
    """A home in use.

    Attributes:
        path: the directory.
        gid: the group of the processes that use it, -1 for the server's.
    """

    path: Path
    gid: int
    lock: FileLock
    is_fixed: bool  # whether its group was given, and not taken for it
    give_back: Callable[[int], None]  # for the group that was taken
    users: int = 0
    preparing: threading.Lock = field(default_factory=threading.Lock)
    # the directories whose files were all handed over, by device and number, with the time of their last change then
    handed_over: dict[tuple[int, int], int] = field(default_factory=dict)


class Homes:
    """The homes in one directory, which several servers may share. Used from several threads.

    Args:
        limit_bytes: homes that nobody uses are removed, the one that was unused longest first, when all together exceed
            it.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._homes: dict[Path, Home] = {}
        self._changing = threading.Lock()
        self._trimmed_s = -_TRIM_EVERY_S

    def place(self, model: str) -> Path:
        """Create the directory that the home of a model would usually be, so that rules can name it. Blocking.

        Args:
            model: the model's directory.
        """
        path = self.directory / _name_of(model)
        with suppress(FileExistsError):
            self._make(path)
            _note_model(path, model)
        return path

    def enter(self, model: str, gid: int | None, take: Callable[[], int], give_back: Callable[[int], None]) -> Home:
        """Return the home of a model for processes that are about to start. Blocking.

        Args:
            model: the model's directory.
            gid: the group of the processes, -1 for the server's; None for any that ``take`` returned, now or for
                others.

        Raises OSError: there can be none.
        """
        self._trim()
        with self._changing:
            home = self._seat(model, gid, take, give_back)
            home.users += 1
        try:
            self.open_again(home)
        except BaseException:
            self.leave(home)
            raise
        return home

    def open_again(self, home: Home) -> None:
        """Open what processes have put into a home meanwhile to others that are about to start. Blocking.

        Raises OSError.
        """
        with home.preparing:
            _prepare(home)

    def leave(self, home: Home) -> None:
        """End the use of a home by processes that are gone. Blocking."""
        with self._changing:
            home.users -= 1
            if home.users:
                return
            del self._homes[home.path]
            with suppress(OSError):
                _close(home)
            if not home.is_fixed:
                home.give_back(home.gid)
            with suppress(OSError):
                os.utime(_lock_of(home.path))
                if next(_files(str(home.path)), None) is None:
                    self._remove(home.path)
            home.lock.release()

    def _seat(self, model: str, gid: int | None, take: Callable[[], int], give_back: Callable[[int], None]) -> Home:
        """The first home of a model that fits: others are for another kind of user, or belong to another server."""
        for number in count():
            path = self.directory / (_name_of(model) + (f".{number}" if number else ""))
            home = self._homes.get(path)
            if home is None:
                with suppress(FileExistsError):
                    self._make(path)
                lock = FileLock(_lock_of(path))
                if not lock.take_alone():
                    lock.release()
                    continue
                try:
                    _note_model(path, model)
                    with suppress(FileExistsError):
                        self._make(path)  # another server may have removed it before it was locked
                    taken = take() if gid is None else gid
                except BaseException:
                    lock.release()
                    raise
                home = self._homes[path] = Home(path, taken, lock, gid is not None, give_back)
                return home
            if home.gid == gid or (gid is None and not home.is_fixed and home.give_back == give_back):
                return home
        raise AssertionError

    def _make(self, path: Path) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = open_directory(str(self.directory))
        try:
            if os.geteuid() == 0:
                os.fchmod(parent, PASSED_BY_OTHERS)  # models' processes may be other users
            os.mkdir(path.name, 0o700, dir_fd=parent)
        finally:
            os.close(parent)

    # The bound

    def _trim(self) -> None:
        """Remove homes of models that are gone, and from time to time, if there are too many bytes, those unused longest."""
        with self._changing:
            if time.monotonic() < self._trimmed_s + _TRIM_EVERY_S:
                return
            self._trimmed_s = time.monotonic()
        homes = sorted(self._found(), key=lambda each: each[1])
        sizes = {path: _size_of(path) for path, _ in homes}
        total = sum(sizes.values())
        for path, used_s in homes:
            is_left = time.time() - used_s > UNUSED_S and not self._model_exists(path)
            if (is_left or total > self._limit_bytes) and self._remove_unused(path):
                total -= sizes[path]
                log.info("Removed the home directory %s, which no model uses.", path)
        if total > self._limit_bytes:
            largest = max(sizes, key=lambda path: sizes[path])
            log.warning(
                "the home directories of models that are in use hold %d bytes, and --model-homes-size is %d: the largest is %s, "
                "with %d bytes. Remove files there, or unload its model and remove all of it",
                total,
                self._limit_bytes,
                largest,
                sizes[largest],
            )

    def _found(self) -> Iterator[tuple[Path, float]]:
        with suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    with suppress(OSError):
                        yield Path(entry.path), os.stat(_lock_of(Path(entry.path))).st_mtime

    def _model_exists(self, path: Path) -> bool:
        try:
            return os.path.isdir(os.fsdecode(_lock_of(path).read_bytes()))
        except (OSError, ValueError):
            return True

    def _remove_unused(self, path: Path) -> bool:
        with self._changing:
            if path in self._homes:
                return False
            try:
                lock = FileLock(_lock_of(path))
            except OSError:
                return False
            try:
                return lock.take_alone() and self._remove(path)
            finally:
                lock.release()

    def _remove(self, path: Path) -> bool:
        """Remove a home whose lock is held."""
        try:
            parent = open_directory(str(path.parent))
            try:
                remove_tree(path.name, parent)
            finally:
                os.close(parent)
            _lock_of(path).unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove %s: %s", path, error.strerror or error)
            return False
        return True


def _name_of(model: str) -> str:
    """A name that is another one if the directory belongs to another user, who may not inherit what is in the home."""
    real = os.path.realpath(model)
    owner = os.stat(real).st_uid
    digest = blake2b(f"{owner} {real}".encode(errors="surrogateescape"), digest_size=_DIGEST_BYTES)
    return f"{os.path.basename(real)[:_LONGEST_NAME]}-{digest.hexdigest()}"


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)


def _note_model(path: Path, model: str) -> None:
    _lock_of(path).write_bytes(os.fsencode(model))


def _prepare(home: Home) -> None:
    """Open what is in a home to the group of the processes to come, which other users may have written."""
    if os.geteuid() != 0:
        return
    descriptor = open_directory(str(home.path))
    try:
        group = os.getegid() if home.gid == _NOT_CHANGED else home.gid
        had = os.fstat(descriptor).st_gid
        if had != group:
            home.handed_over.clear()
        _hand_over(descriptor, had, group, home.handed_over)
        os.fchown(descriptor, 0, group)
        os.fchmod(descriptor, _OF_GROUP)
    finally:
        os.close(descriptor)


def _close(home: Home) -> None:
    """Close a home that nobody uses: its group may be another model's next."""
    if os.geteuid() == 0:
        descriptor = open_directory(str(home.path))
        try:
            os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)


def _hand_over(
    directory: int, had: int, group: int, done: dict[tuple[int, int], int], levels: int = _MOST_LEVELS
) -> None:
    """Give the files of one group below a directory to another group, with the permissions of their owners.

    Others are left alone, and so are files with several names: a process may have put a name of a foreign file there. A
    directory that is ``done`` and has not changed since is not gone through again, but those in it may be.
    """
    status = os.fstat(directory)
    place, changed_ns = (status.st_dev, status.st_ino), status.st_mtime_ns
    is_done = done.get(place) == changed_ns
    may_still_change = changed_ns > time.time_ns() - _TICK_NS
    with os.scandir(directory) as entries:
        for entry in entries:
            if not is_done or entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _hand_over_one(entry.name, directory, had, group, done, levels)
    if not may_still_change and (place in done or len(done) < _MOST_DONE):
        done[place] = changed_ns


def _hand_over_one(
    name: str, directory: int, had: int, group: int, done: dict[tuple[int, int], int], levels: int
) -> None:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(handle)
        is_directory = stat.S_ISDIR(status.st_mode)
        if status.st_gid != had or not (is_directory or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)):
            return
        place = f"/proc/self/fd/{handle}"  # this very file, whatever its name leads to
        if had != group:
            os.chown(place, -1, group)
        mode = stat.S_IMODE(status.st_mode)
        opened = (
            mode & ~(stat.S_ISUID | stat.S_ISGID) | (mode & stat.S_IRWXU) >> 3 | (stat.S_ISGID if is_directory else 0)
        )
        if had != group or mode != opened:
            os.chmod(place, opened)
        if is_directory and levels:
            inner = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _hand_over(inner, had, group, done, levels - 1)
            finally:
                os.close(inner)
    finally:
        os.close(handle)


def _files(directory: str, levels: int = _MOST_LEVELS) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory that is neither a directory nor a link."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                if not entry.is_symlink():
                    yield entry
            elif levels:
                yield from _files(entry.path, levels - 1)


def _size_of(directory: Path) -> int:
    total = 0
    for entry in islice(_files(str(directory)), _MOST_COUNTED):
        with suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
    return total
