"""Keys of archives, derived from their content, and a record of the keys of known files."""

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
"""A file modified this recently may be modified again without a visible change of its timestamps."""


def key_of(file: BinaryIO, cancelled: threading.Event) -> str:
    """The key of a file's content.

    Raises:
        Cancelled: the key is no longer needed.
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
    """Keys of files that were hashed before, valid while size, times and inode stay the same.

    Args:
        directory: where the records are kept, one small file each.
    """

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
        """Remove all records with this key."""
        with suppress(OSError):
            for path in self._directory.iterdir():
                with suppress(OSError):
                    if path.read_text().endswith(f" {key}"):
                        path.unlink()


def _identity(file: BinaryIO) -> tuple[str, str]:
    status = os.fstat(file.fileno())
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{status.st_dev:x}-{status.st_ino:x}", stamp
