"""Environments that are packed when a model is loaded: which list of packages became which environment."""

from __future__ import annotations

import hashlib
import logging
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pybackend.environment.cache import EnvironmentCache, HeldEnvironment
from pybackend.environment.file_lock import FileLock
from pybackend.environment.manifest import host_platform
from pybackend.environment.unpacking import Cancelled, cannot_write
from pybackend.errors import ModelEnvironmentError

log = logging.getLogger(__name__)

Packer = Callable[[Path, Path, threading.Event], object]
"""Makes an archive of a list of packages: takes the list, the archive to write, and what is set when it is not wanted."""

_SUFFIXES = frozenset({".yml", ".yaml", ".txt", ".toml"})
_KEY_BYTES = 16


def is_specification(path: Path) -> bool:
    """True for a list of packages, False for an archive: only its name tells."""
    return path.suffix.lower() in _SUFFIXES


class SpecificationCache:
    """Lists of packages that were packed before: by their text, the host's Python and platform.

    Args:
        cache: of the environments that they became.
    """

    def __init__(self, cache: EnvironmentCache) -> None:
        self._cache = cache
        self._directory = cache.directory.parent / "packed"

    def hold(self, specification: Path, packer: Packer, cancelled: threading.Event) -> HeldEnvironment:
        """The environment of a list of packages, packed unless that was done before.

        Raises:
            PybackendError: it cannot be packed, or not be unpacked.
            Cancelled: it is not wanted any more.
        """
        try:
            text = specification.read_bytes()
        except OSError as error:
            raise ModelEnvironmentError(f"cannot read {specification}: {error.strerror}") from error
        facts = f"{specification.suffix} {host_platform()} {platform.python_version()} ".encode()
        key = hashlib.blake2b(facts + text, digest_size=_KEY_BYTES).hexdigest()
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            lock = FileLock(self._directory / f"{key}.lock")
        except OSError as error:
            raise cannot_write(str(specification), self._directory, error) from error
        try:
            if not lock.wait_alone(cancelled):
                raise Cancelled
            return self._held(key, cancelled) or self._pack(key, specification, packer, cancelled)
        finally:
            lock.release()

    def clear_abandoned(self) -> None:
        """Remove archives that were being written by a process that was killed."""
        for draft in self._directory.glob("*.tar.zst*"):
            with suppress(OSError):
                lock = FileLock(self._directory / f"{draft.name.partition('.')[0]}.lock")
                if lock.take_alone():
                    draft.unlink(missing_ok=True)
                lock.release()

    def _held(self, key: str, cancelled: threading.Event) -> HeldEnvironment | None:
        with suppress(OSError):
            return self._cache.hold_key((self._directory / key).read_text(), cancelled)
        return None

    def _pack(self, key: str, specification: Path, packer: Packer, cancelled: threading.Event) -> HeldEnvironment:
        archive = self._directory / f"{key}.tar.zst"
        log.info("packing %s", specification)
        try:
            packer(specification, archive, cancelled)
            held = self._cache.hold(archive, cancelled)
        finally:
            archive.unlink(missing_ok=True)
        with suppress(OSError):  # then it is packed again next time
            (self._directory / key).write_text(held.key)
        return held
