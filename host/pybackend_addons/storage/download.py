"""Downloads objects: several at a time, large ones in parts, each under its name once complete; and its progress."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import IO

from pybackend.errors import ErrorCode
from pybackend_addons.storage.bucket import Bucket, StorageError, Unreachable
from pybackend_addons.storage.object_cache import PART, READABLE, ModelObjects
from pybackend_addons.storage.remote_files import RemoteFile

PART_BYTES = 64 * 1024 * 1024
"""Objects above this are downloaded in parts of this size, several at a time."""

_AT_ONCE = 8
SPARE_BYTES = 16 * 1024 * 1024
"""Room on the disk that downloads leave."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(StorageError):
    """The cache's disk has no room for an object."""

    def __init__(self, directory: Path, needed_bytes: int) -> None:
        super().__init__(
            f"the disk of {directory} has no room for {needed_bytes} bytes to download: free some, or name another directory "
            "by --repository-cache-directory",
            ErrorCode.UNAVAILABLE,
        )


@dataclass
class _Draft:
    """An object on its way."""

    file: RemoteFile
    path: Path
    missing: int = field(init=False)  # number of parts that are not complete
    _created: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self.missing = len(self.starts)

    @property
    def starts(self) -> range:
        """Offsets of the parts; an empty object has one."""
        return range(0, max(1, self.file.nbytes), PART_BYTES)

    @property
    def draft(self) -> Path:
        return self.path.with_name(self.path.name + PART)

    async def created(self) -> None:
        """Wait until the draft exists; the first caller makes it."""
        if self._created is None:
            self._created = asyncio.ensure_future(asyncio.to_thread(self._create))
        await asyncio.shield(self._created)

    def _create(self) -> None:
        descriptor = os.open(self.draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self.file.nbytes)
        finally:
            os.close(descriptor)

    def write(self, piece: memoryview, offset: int) -> None:
        descriptor = os.open(self.draft, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while piece:
                written = os.pwrite(descriptor, piece, offset)
                piece, offset = piece[written:], offset + written
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        os.chmod(self.draft, READABLE)
        self.draft.replace(self.path)


class Downloader:
    """Downloads from one repository; connections are shared by all its models."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, files: Sequence[RemoteFile], objects: ModelObjects, transfer: Transfer) -> None:
        """Bring objects into the cache, whose lock must be held. Complete files stay there if another one fails.

        Raises Changed: an object is another one than the listing said.
        """
        needed_bytes = sum(file.nbytes for file in files)
        workers: list[asyncio.Task[None]] = []
        try:
            disk = await asyncio.to_thread(os.statvfs, objects.directory)
            if needed_bytes + SPARE_BYTES > disk.f_bavail * disk.f_frsize:
                raise DiskFull(objects.directory, needed_bytes)
            parts = _parts(files, objects)
            workers += [asyncio.create_task(self._work(parts, transfer)) for _ in range(_AT_ONCE)]
            await asyncio.gather(*workers)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(objects.directory, needed_bytes) from None
            raise StorageError(f"{objects.directory} cannot be written: {error.strerror}") from None
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, parts: Iterator[tuple[_Draft, int]], transfer: Transfer) -> None:
        for draft, start in parts:
            async with self._places:
                await draft.created()
                await self._download(draft, start, min(start + PART_BYTES, draft.file.nbytes), transfer)
            draft.missing -= 1
            if not draft.missing:
                await asyncio.to_thread(draft.finish)

    async def _download(self, draft: _Draft, start: int, stop: int, transfer: Transfer) -> None:
        position = start

        async def attempt() -> None:
            nonlocal position
            before = position
            try:
                async with aclosing(self._bucket.read(draft.file, position, stop)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(draft.write, piece, position)
                        position += len(piece)
                        transfer.add(len(piece))
            except Unreachable:
                if position == before:  # otherwise there is progress, and the time limit starts again
                    raise

        while position < stop:
            await self._bucket.patience.persist(attempt)


def _parts(files: Sequence[RemoteFile], objects: ModelObjects) -> Iterator[tuple[_Draft, int]]:
    for file in files:
        draft = _Draft(file, objects.path(file))
        for start in draft.starts:
            yield draft, start


log = logging.getLogger(__name__)

LINE_S, _DRAW_S = 10.0, 0.2
_CLEAR = "\x1b[K\r"


class Progress:
    """All downloads of a server."""

    def __init__(self, terminal: IO[str] | None) -> None:
        self._terminal = terminal
        self._active: list[Transfer] = []
        self._drawn_s = 0.0

    def begin(self, name: str, place: str, file_count: int, total_bytes: int) -> Transfer:
        transfer = Transfer(self, name, total_bytes)
        self._active.append(transfer)
        files = "1 file" if file_count == 1 else f"{file_count} files"
        log.info("downloading model '%s' from %s: %s, %s", name, place, files, size(total_bytes))
        return transfer

    def end(self, transfer: Transfer) -> None:
        self._active.remove(transfer)
        self.draw(at_once=True)

    def draw(self, *, at_once: bool = False) -> None:
        """Show the sum on the terminal, unless that was done a moment ago.

        The cursor stays at the start of the line, so that the next line of the log replaces it.
        """
        if self._terminal is None or not (at_once or monotonic() - self._drawn_s > _DRAW_S):
            return
        self._drawn_s = monotonic()
        total = sum(transfer.total_bytes for transfer in self._active)
        done = sum(transfer.done_bytes for transfer in self._active)
        count = len(self._active)
        text = f"{count} {'download' if count == 1 else 'downloads'}: {share(done, total)}" if count else ""
        self._terminal.write(f"{text}{_CLEAR}")
        self._terminal.flush()


class Transfer:
    """The download of one model."""

    def __init__(self, progress: Progress, name: str, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._progress = progress
        self._name = name
        self._began_s = self._said_s = monotonic()

    def add(self, nbytes: int) -> None:
        """Count bytes that have arrived."""
        self.done_bytes += nbytes
        if monotonic() - self._said_s > LINE_S:
            self._said_s = monotonic()
            log.info("downloading model '%s': %s", self._name, share(self.done_bytes, self.total_bytes))
        self._progress.draw()

    def end(self, *, complete: bool) -> None:
        self._progress.end(self)
        if complete:
            took_s = monotonic() - self._began_s
            log.info("downloaded model '%s': %s in %.2f s", self._name, size(self.total_bytes), took_s)


def terminal() -> IO[str] | None:
    """Standard error, if somebody looks at it."""
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None


def share(done_bytes: int, total_bytes: int) -> str:
    """A part of a whole: ``120.0 MB of 340.0 MB (35 %)``."""
    percent = 100 * done_bytes // total_bytes if total_bytes else 100
    return f"{size(done_bytes)} of {size(total_bytes)} ({percent} %)"


def size(nbytes: float) -> str:
    """A size with a unit that fits."""
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
