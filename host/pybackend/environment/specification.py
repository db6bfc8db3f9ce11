"""Environments packed at load time: maps lists of packages to the environments made from them.

The packer is a separate process, which can be stopped.
"""

import hashlib
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pybackend.author_files import read_regular
from pybackend.environment.cache import PACKED, EnvironmentCache, HeldEnvironment
from pybackend.environment.file_lock import FileLock
from pybackend.environment.manifest import host_platform
from pybackend.environment.unpacking import Cancelled, cannot_write
from pybackend.errors import ModelEnvironmentError

log = logging.getLogger(__name__)

Packer = Callable[[Path, Path, threading.Event], object]
"""Packs a list of packages into an archive. Arguments: the list, the archive to write, the event that cancels it."""

_SUFFIXES = frozenset({".yml", ".yaml", ".txt", ".toml"})
_KEY_BYTES = 16
_MOST_BYTES = 16 * 1024 * 1024


def is_specification(path: Path) -> bool:
    """True for a list of packages, False for an archive, judged by the file name alone."""
    return path.suffix.lower() in _SUFFIXES


class SpecificationCache:
    """Packed lists of packages, keyed by their text and the host's Python and platform."""

    def __init__(self, cache: EnvironmentCache) -> None:
        self._cache = cache
        self._directory = cache.directory.parent / PACKED

    def hold(self, specification: Path, packer: Packer, cancelled: threading.Event) -> HeldEnvironment:
        """The environment of a list of packages, packed unless it exists already.

        Raises PybackendError if it cannot be packed or unpacked.
        """
        try:
            text = read_regular(specification, _MOST_BYTES)
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
            with suppress(OSError):
                held = self._cache.hold_key((self._directory / key).read_text(), cancelled)
                if held is not None:
                    return held
            return self._pack(key, specification, packer, cancelled)
        finally:
            lock.release()

    def clear_abandoned(self) -> None:
        """Remove unfinished archives of killed processes."""
        for draft in self._directory.glob("*.tar.zst*"):
            with suppress(OSError):
                lock = FileLock(self._directory / f"{draft.name.partition('.')[0]}.lock")
                if lock.take_alone():
                    draft.unlink(missing_ok=True)
                lock.release()

    def _pack(self, key: str, specification: Path, packer: Packer, cancelled: threading.Event) -> HeldEnvironment:
        archive = self._directory / f"{key}.tar.zst"
        log.info("Packing %s.", specification)
        try:
            packer(specification, archive, cancelled)
            held = self._cache.hold(archive, cancelled)
        finally:
            archive.unlink(missing_ok=True)
        with suppress(OSError):  # otherwise it is packed again next time
            (self._directory / key).write_text(held.key)
        return held


_LOOK_EVERY_S = 0.1
_MOST_OUTPUT_BYTES = 64 * 1024


def pack_in_process(specification: Path, archive: Path, cancelled: threading.Event) -> None:
    """Run ``pybackend pack`` and wait for it."""
    command = [sys.executable, "-m", "pybackend", "pack", str(specification), "-o", str(archive)]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
        )
        try:
            while True:
                try:
                    status = process.wait(_LOOK_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    if cancelled.is_set():
                        raise Cancelled from None
        finally:
            with suppress(ProcessLookupError):  # the process group includes installers it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        said = output.read(_MOST_OUTPUT_BYTES).decode("utf-8", "replace").strip()
    if status:
        reason = said.partition("error: ")[2] or said or f"the command ended with status {status}"
        raise ModelEnvironmentError(f"{specification} cannot be packed: {reason}")
    for line in said.splitlines():
        if line.startswith("warning: "):
            log.warning("%s: %s", specification, line.removeprefix("warning: "))
