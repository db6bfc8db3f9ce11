"""What an archive's content is called, and which files were found to have which content."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pybackend.environment.unpacking import Cancelled

_KEY_BYTES = 20
_PERSON = b"pb-environment-1"
_CHUNK_BYTES = 4 * 1024 * 1024

_YOUNG_NS = 2_000_000_000
"""A file that was changed this recently may be changed again without looking younger."""


def key_of(file: BinaryIO, cancelled: threading.Event) -> str:
    """The name of a file's content.

    Raises:
        Cancelled: it is not wanted any more.
        OSError: the file cannot be read.
    """
    file.seek(0)
    digest = hashlib.blake2b(digest_size=_KEY_BYTES, person=_PERSON)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        if cancelled.is_set():
            raise Cancelled
    file.seek(0)
    return digest.hexdigest()


class KnownKeys:
    """Keys of files that were read before, as long as size, times and inode are the same.

    Args:
        directory: where they are kept, a small file each.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, file: BinaryIO) -> str:
        """The key of an open file; empty if it has to be read."""
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
        """Remember a key, if nobody can have changed the file unnoticed; returns it."""
        place, stamp = _identity(file)
        status = os.fstat(file.fileno())
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _YOUNG_NS:
            draft = self._directory / f"{place}.{os.getpid()}.{threading.get_ident()}.draft"
            with suppress(OSError):  # then it is read again next time
                self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                draft.write_text(f"{stamp} {key}")
                draft.replace(self._directory / place)
        return key

    def forget(self, key: str) -> None:
        """Forget which files have this content."""
        with suppress(OSError):
            for path in self._directory.iterdir():
                with suppress(OSError):
                    if path.read_text().endswith(f" {key}"):
                        path.unlink()


def _identity(file: BinaryIO) -> tuple[str, str]:
    status = os.fstat(file.fileno())
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{status.st_dev:x}-{status.st_ino:x}", stamp
