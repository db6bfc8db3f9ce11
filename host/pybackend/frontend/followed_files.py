"""Files of the operator that are read again while the server runs: API keys, certificates."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pybackend.apart import begin_apart
from pybackend.errors import ServerError

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LOOK_S = 2.0

_MOST_READING_S = 10.0
"""A FIFO in the place of a file, or a disk that hangs, must not end the following."""


class FollowedFiles(Generic[_T]):
    """Some files with one meaning.

    ``read`` may block, and runs in a thread; a ServerError leaves everything as it was, but the first reading passes it
    on. ``take`` gets what was read again, on the event loop. The log calls the files ``what``, a plural.

    Attributes:
        handing: each hands what was taken to other processes. The log says that the files were read once all of them
            have it.
    """

    def __init__(self, what: str, files: Sequence[Path], read: Callable[[], _T], take: Callable[[_T], None]) -> None:
        self._what = what
        self._files = files
        self._read = read
        self._take = take
        self._stamps = self._look()  # before the reading: what changes meanwhile is read again
        self._wanted = asyncio.Event()
        self.handing: list[Callable[[], Awaitable[None]]] = []
        self.first = read()  # what was read first

    def read_again(self) -> None:
        """Read the files soon, whether or not they seem to have changed."""
        self._stamps = []
        self._wanted.set()

    async def follow(self) -> None:
        """Read the files again whenever one of them changes, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wanted.wait()
            self._wanted.clear()
            stamps = await (await begin_apart(self._look))
            if stamps == self._stamps:
                continue
            self._stamps = stamps
            try:
                self._take(await self._read_in_time())
                for hand in self.handing:
                    await hand()
            except ServerError as error:
                log.error("The %s stay as they were: %s", self._what, error)  # noqa: TRY400  the operator's mistake
            else:
                log.info("Read the %s in %s again.", self._what, ", ".join(map(str, self._files)))

    async def _read_in_time(self) -> _T:
        reading = await begin_apart(self._read)
        try:
            async with asyncio.timeout(_MOST_READING_S):
                return await reading
        except TimeoutError:
            names = ", ".join(map(str, self._files))
            raise ServerError(
                f"reading {names} takes longer than {_MOST_READING_S:g} s: is each of them a file?"
            ) from None

    def _look(self) -> list[tuple[int, ...]]:
        return [_stamp_of(file) for file in self._files]


def _stamp_of(file: Path) -> tuple[int, ...]:
    """Changes with the file; empty if there is none."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
