"""Scratch directories and drafts. A killed pack leaves them behind; the next one removes them, but not those in use.

The process that uses one holds a lock on it, which the operating system releases when the process dies.
"""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pybackend.environment.cache import default_cache_directory
from pybackend_tools.pack.errors import OutputError, output_error

_PREFIX = "pack-"
_REMOVALS = 3


def default_work_directory() -> Path:
    """Where environments are assembled: on a disk, because the directory for temporary files may be in memory."""
    directory = default_cache_directory() / "pack"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return directory if os.access(directory, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A new directory below ``parent``, removed at the end."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _only_one(parent):
            _remove_abandoned_directories(parent)
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise output_error(error, "assemble the environment", parent) from None
    try:
        yield directory
    finally:
        _remove_directory(directory)
        os.close(lock)


@contextmanager
def _only_one(parent: Path) -> Iterator[None]:
    # A new directory must be locked before another process looks for unlocked ones.
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _remove_abandoned_directories(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(directory).st_uid == os.geteuid():
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Child processes of the killed pack may run for a moment longer, and no longer find their files.
                    doomed = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)) / "removed"
                    path.rename(doomed)
                    _remove_directory(doomed.parent)
            finally:
                os.close(directory)


def _remove_directory(path: Path) -> None:
    for _ in range(_REMOVALS):  # other processes may still create files in it
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            break


@contextmanager
def draft_of(archive: Path) -> Iterator[BinaryIO]:
    """A file that becomes ``archive`` once complete, and is removed otherwise: an incomplete one never has the name."""
    directory = archive.parent
    try:
        with _only_one(directory):
            _remove_abandoned_drafts(archive)
            file, name = tempfile.mkstemp(prefix=f".{archive.name}.", suffix=".partial", dir=directory)
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise output_error(error, f"write {archive}", directory) from None
    try:
        with os.fdopen(file, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), 0o666 & ~_umask())
            os.fsync(stream.fileno())
            os.replace(name, archive)
    except BaseException as error:  # interrupted, too: half an archive must not stay
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise output_error(error, f"write {archive}", directory) from None
        raise


def check_writable(archive: Path) -> None:
    """Check before the work that the archive can be written."""
    if archive.is_dir():
        raise OutputError(f"cannot write {archive}: it is a directory; name a file in it")
    if not archive.parent.is_dir():
        raise OutputError(f"cannot write {archive}: the directory {archive.parent} does not exist")
    with suppress(_Written), draft_of(archive):
        raise _Written


class _Written(Exception):
    """The draft was created successfully and must be discarded."""


def _remove_abandoned_drafts(archive: Path) -> None:
    for path in archive.parent.glob(f".{glob.escape(archive.name)}.*.partial"):
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(file)


def _umask() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
