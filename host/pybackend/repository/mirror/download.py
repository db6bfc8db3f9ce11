"""Downloads objects: several at a time, large ones in parts, each under its name only when it is complete."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.errors import ErrorCode
from pybackend.repository.mirror.bucket import Bucket, StorageError, Unreachable
from pybackend.repository.mirror.object_cache import PART, READABLE, ModelObjects
from pybackend.repository.mirror.progress import Transfer
from pybackend.repository.mirror.remote_files import RemoteFile

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
    """An object on its way.

    Attributes:
        missing: number of parts that are not complete.
    """

    file: RemoteFile
    path: Path
    missing: int = field(init=False)
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

        Raises:
            Changed: an object is another one than the listing said.
            StorageError: storage does not answer, or the disk is full.
        """
        needed_bytes = sum(file.nbytes for file in files)
        workers: list[asyncio.Task[None]] = []
        try:
            room = await asyncio.to_thread(os.statvfs, objects.directory)
            if needed_bytes + SPARE_BYTES > room.f_bavail * room.f_frsize:
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
        """Download parts until none is left."""
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
