"""Cache of unpacked environments, keyed by archive content: each is unpacked once per machine, for all servers on it.

In the cache's directory, ``<key>`` is an environment. It is unpacked under its final name because its files contain
their own paths. Beside it lie ``<key>.ready``, written last; ``<key>.files``, the inventory of unpacked files;
``<key>.hooks``, the effect of its hooks once known; and ``<key>.lock``, held exclusively while the environment is
created or removed, and shared while it is used. The kernel releases locks of killed processes.
None of these files lies inside the environment, because an archive could contain a forged one.
"""

import hashlib
import json
import logging
import os
import shutil
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from pybackend.author_files import open_regular
from pybackend.environment.file_lock import FileLock
from pybackend.environment.hooks import HookEffect
from pybackend.environment.prefixes import rewrite_prefixes
from pybackend.environment.unpacking import Cancelled, Inventory, cannot_write, unpack
from pybackend.errors import ModelEnvironmentError

log = logging.getLogger(__name__)

_KEY_BYTES = 20
_PERSON = b"pb-environment-1"
_CHUNK_BYTES = 4 * 1024 * 1024

_YOUNG_NS = 2_000_000_000
"""A file modified this recently may be modified again without a visible change of its timestamps."""


def key_of(file: BinaryIO, cancelled: threading.Event) -> str:
    """The key of a file's content."""
    file.seek(0)
    digest = hashlib.blake2b(digest_size=_KEY_BYTES, person=_PERSON)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        if cancelled.is_set():
            raise Cancelled
    file.seek(0)
    return digest.hexdigest()


class HashedKeys:
    """Keys of files that were hashed before, valid while size, times and inode stay the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, file: BinaryIO) -> str:
        """The key of an open file; empty if the file must be hashed."""
        place, stamp = _identity(file)
        with suppress(OSError):
            path = self._directory / place
            known, _, key = path.read_text().rpartition(" ")
            if (
                path.lstat().st_uid in {os.getuid(), 0}
                and known == stamp
                and len(key) == 2 * _KEY_BYTES
                and key.isalnum()
            ):
                return key
        return ""

    def keep(self, file: BinaryIO, key: str) -> str:
        """Record a key, unless the file could change unnoticed; returns the key."""
        place, stamp = _identity(file)
        status = os.fstat(file.fileno())
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _YOUNG_NS:
            draft = self._directory / f"{place}.{os.getpid()}.{threading.get_ident()}.draft"
            with suppress(OSError):  # otherwise the file is hashed again next time
                self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                draft.write_text(f"{stamp} {key}")
                draft.replace(self._directory / place)
        return key

    def forget(self, key: str) -> None:
        with suppress(OSError):
            for path in self._directory.iterdir():
                with suppress(OSError):
                    if path.read_text().endswith(f" {key}"):
                        path.unlink()


def _identity(file: BinaryIO) -> tuple[str, str]:
    status = os.fstat(file.fileno())
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{status.st_dev:x}-{status.st_ino:x}", stamp


_Record = TypeVar("_Record")
"""What a file beside an environment holds: a dataclass, as JSON."""

_READY, _FILES, _HOOKS, _LOCK, _DRAFT = ".ready", ".files", ".hooks", ".lock", ".draft"

_ENVIRONMENTS, _ARCHIVES, PACKED = "environments", "archives", "packed"

_LOOK_EVERY_S = 0.05

_FORMAT = 1
"""Version of the unpacking steps. Environments of another version are unpacked again."""


def default_cache_directory() -> Path:
    """The default cache directory. For root it is not below root's home, which models of other users cannot enter."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen).absolute() / "pybackend"
    return Path("/var/cache/pybackend") if os.getuid() == 0 else Path.home() / ".cache" / "pybackend"


def cache_places(directory: Path) -> list[Path]:
    """Paths below a cache's directory that models must not access."""
    return [directory / name for name in (_ENVIRONMENTS, _ARCHIVES, PACKED)]


@dataclass(frozen=True)
class ReadyMark:
    """Facts about a complete environment."""

    format: int  # see ``_FORMAT``
    prefix: str  # the directory it was unpacked in. It cannot be moved.
    source: str
    made_s: float
    total_bytes: int
    boot: str  # the boot during which its files were last known to be complete


@dataclass(frozen=True)
class CacheEntry:
    """One environment of a cache."""

    key: str
    prefix: Path
    mark: ReadyMark | None  # None if it is incomplete: being created, or interrupted
    used_s: float
    in_use: bool  # a process uses or creates it


@dataclass(frozen=True, eq=False)
class HeldEnvironment:
    """An unpacked environment that cannot be removed while this object is held and the process lives."""

    key: str
    prefix: Path
    lock: FileLock | None
    was_unpacked: bool

    def keep_over_exec(self) -> None:
        """Forbid its removal until a program that replaces this process ends."""
        if self.lock is not None:
            self.lock.keep_over_exec()

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


class EnvironmentRecords:
    """The files beside the environments in a directory: what is known of each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def place(self, key: str, suffix: str) -> Path:
        return self.directory / (key + suffix)

    def inventory(self, key: str) -> Inventory | None:
        """The inventory of an unpacked environment, None if unknown."""
        return self.read(key, _FILES, Inventory)

    def hook_effect(self, key: str) -> HookEffect | None:
        """The effect of an environment's hooks, None if unknown."""
        return self.read(key, _HOOKS, HookEffect)

    def keep_hook_effect(self, key: str, effect: HookEffect) -> None:
        """Record the effect of the hooks of an environment that this process holds."""
        with suppress(OSError):  # otherwise the hooks run again next time
            self.write(key, _HOOKS, effect)

    def read(self, key: str, suffix: str, kind: type[_Record]) -> _Record | None:
        """A record, None if there is none that can be read."""
        try:
            return msgspec.convert(json.loads(self.place(key, suffix).read_text()), kind)
        except (OSError, ValueError, msgspec.ValidationError):
            return None

    def write(self, key: str, suffix: str, record: object) -> None:
        """Keep a record, all of it or nothing. Raises OSError."""
        draft = self.directory / f"{key}{suffix}.{os.getpid()}.{threading.get_ident()}{_DRAFT}"
        try:
            draft.write_text(json.dumps(vars(record)))
            draft.replace(self.place(key, suffix))
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def clear(self, key: str) -> None:
        """Remove all of an environment, whose mark goes first, so that a crash leaves none that looks complete."""
        for suffix in (_READY, _FILES, _HOOKS):
            self.place(key, suffix).unlink(missing_ok=True)
        for draft in self.directory.glob(f"{key}*{_DRAFT}"):
            draft.unlink(missing_ok=True)


class EnvironmentCache:
    """The environments in one directory, which any number of processes may share.

    Args:
        limit_bytes: unused environments are removed when the total exceeds this, None for never.
    """

    def __init__(self, directory: Path, limit_bytes: int | None = None) -> None:
        self.directory = directory / _ENVIRONMENTS
        self.records = EnvironmentRecords(self.directory)
        self._limit_bytes = limit_bytes
        self._known = HashedKeys(directory / _ARCHIVES)

    def hold(self, archive: Path, cancelled: threading.Event) -> HeldEnvironment:
        """The environment for an archive's current content, unpacked if necessary. Blocking: not for the event loop.

        Raises ModelEnvironmentError if the archive cannot be read or unpacked.
        """
        try:
            file = open_regular(archive)
        except OSError as error:
            raise ModelEnvironmentError(f"cannot read {archive}: {error.strerror}") from error
        with file:
            key = self._known.get(file) or self._known.keep(file, key_of(file, cancelled))
            held = self.hold_key(key, cancelled) or self._make(key, file, archive, cancelled)
        if held.was_unpacked and self._limit_bytes is not None:
            self._evict(self._limit_bytes)
        return held

    def hold_key(self, key: str, cancelled: threading.Event) -> HeldEnvironment | None:
        """The environment with this key, None if it is missing or incomplete.

        Raises ModelEnvironmentError if another user could have put it there.
        """
        if self._mark(key) is None:
            return None
        self._check_owner()
        try:
            lock = FileLock(self.records.place(key, _LOCK))
        except OSError:  # a cache that this user cannot modify: the environment cannot be removed either
            return HeldEnvironment(key, self.directory / key, None, was_unpacked=False)
        return self._share(key, lock, cancelled, was_unpacked=False)

    def _share(
        self, key: str, lock: FileLock, cancelled: threading.Event, *, was_unpacked: bool
    ) -> HeldEnvironment | None:
        if not lock.wait_shared(cancelled):
            lock.release()
            raise Cancelled
        if self._mark(key) is None:  # it was removed in the meantime
            lock.release()
            return None
        with suppress(OSError):
            os.utime(self.records.place(key, _LOCK))
        return HeldEnvironment(key, self.directory / key, lock, was_unpacked=was_unpacked)

    def _make(self, key: str, file: BinaryIO, archive: Path, cancelled: threading.Event) -> HeldEnvironment:
        has_waited = False
        while True:
            held = None
            lock = self._lock(key, archive)
            if lock.take_alone():
                try:
                    is_missing = self._mark(key) is None
                    if is_missing:
                        self._unpack(key, file, archive, cancelled)
                except BaseException:  # whatever ended it: others wait for the lock
                    lock.release()
                    raise
                # Downgrading the lock is not atomic: another process may intervene, so the caller checks again.
                held = self._share(key, lock, cancelled, was_unpacked=is_missing)
            elif self._mark(key) is not None:  # users of the environment hold the lock too
                held = self._share(key, lock, cancelled, was_unpacked=False)
            else:
                lock.release()
                if not has_waited:
                    log.info("Another process is unpacking or removing the environment of %s; waiting for it.", archive)
                has_waited = True
                if cancelled.wait(_LOOK_EVERY_S):
                    raise Cancelled
            if held is not None:
                return held

    def _lock(self, key: str, archive: Path) -> FileLock:
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._check_owner()
            return FileLock(self.records.place(key, _LOCK))
        except OSError as error:
            raise cannot_write(str(archive), self.directory, error) from error

    def _unpack(self, key: str, file: BinaryIO, archive: Path, cancelled: threading.Event) -> None:
        started_s = time.monotonic()
        prefix, source = self.directory / key, str(archive)
        log.info("Unpacking %s into %s.", source, prefix)
        self._clear(key)
        file.seek(0)
        try:
            inventory = unpack(file, source, prefix, cancelled)
            inventory.look_again(prefix, rewrite_prefixes(prefix, source))
            if key_of(file, cancelled) != key:
                raise ModelEnvironmentError(f"{source} was modified while it was being read: load the model again")
            self.records.write(key, _FILES, inventory)
            mark = ReadyMark(_FORMAT, str(prefix), source, time.time(), inventory.total_bytes, _boot())
            self.records.write(key, _READY, mark)
        except BaseException as error:  # whatever ended it: half an environment must not stay
            with suppress(OSError):
                self._clear(key)
            if isinstance(error, OSError):
                raise cannot_write(source, self.directory, error) from error
            raise
        log.info(
            "Unpacked %s: %d files, %.0f MB, in %.2f s",
            source,
            len(inventory.files),
            inventory.total_bytes / 1e6,
            time.monotonic() - started_s,
        )

    def _check_owner(self) -> None:
        """Models execute these files, so no other user may be able to write there."""
        status = self.directory.stat()
        if status.st_uid not in {os.getuid(), 0} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ModelEnvironmentError(
                f"{self.directory} belongs to another user or is writable for others, and models would execute files "
                f"put there: `chmod go-w` it, or name another directory by --environment-cache-directory"
            )

    def _mark(self, key: str) -> ReadyMark | None:
        """The mark of a complete environment; None if it is incomplete, or was unpacked elsewhere."""
        mark = self.records.read(key, _READY, ReadyMark)
        prefix = self.directory / key
        if mark is None or mark.format != _FORMAT or mark.prefix != str(prefix) or not prefix.is_dir():
            return None
        return mark if mark.boot == _boot() else self._after_boot(key, mark)

    def _after_boot(self, key: str, mark: ReadyMark) -> ReadyMark | None:
        """Verify file sizes once per boot: a power failure may have lost the last writes."""
        inventory = self.records.inventory(key)
        prefix = self.directory / key
        if inventory is None or inventory.differences(prefix, contents=False):
            log.warning("The environment in %s is damaged and will be unpacked again.", prefix)
            return None
        checked = replace(mark, boot=_boot())
        with suppress(OSError):
            self.records.write(key, _READY, checked)
        return checked

    # Listing and removing

    def entries(self) -> list[CacheEntry]:
        """All environments, including incomplete ones, most recently used first."""
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        keys = {name.partition(".")[0] for name in names}
        return sorted(map(self._entry, keys), key=lambda entry: -entry.used_s)

    def _entry(self, key: str) -> CacheEntry:
        used_s = 0.0
        with suppress(OSError):
            used_s = self.records.place(key, _LOCK).stat().st_mtime
        in_use = False
        with suppress(OSError):
            lock = FileLock(self.records.place(key, _LOCK)) if used_s else None
            in_use = lock is not None and not lock.take_alone()
            if lock is not None:
                lock.release()
        return CacheEntry(key, self.directory / key, self._mark(key), used_s, in_use)

    def remove(self, key: str) -> bool:
        """Remove an environment, complete or not; False if it is in use."""
        lock = FileLock(self.records.place(key, _LOCK))
        try:
            if not lock.take_alone():
                return False
            self._clear(key)
            self.records.place(key, _LOCK).unlink(missing_ok=True)
        finally:
            lock.release()
        self._known.forget(key)
        return True

    def _clear(self, key: str) -> None:
        """Remove an exclusively held environment; its mark first, so that a crash leaves none that looks complete."""
        self.records.clear(key)
        prefix = self.directory / key
        if prefix.exists():
            shutil.rmtree(prefix)

    def _evict(self, limit_bytes: int) -> None:
        entries = self.entries()
        total_bytes = sum(entry.mark.total_bytes for entry in entries if entry.mark)
        for entry in reversed(entries):
            if total_bytes <= limit_bytes:
                return
            if entry.mark is not None and not entry.in_use:
                with suppress(OSError):
                    if self.remove(entry.key):
                        log.info("Removed the unused environment %s from the cache.", entry.prefix)
                        total_bytes -= entry.mark.total_bytes


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
