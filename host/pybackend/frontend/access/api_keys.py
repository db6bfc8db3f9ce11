"""API keys: read from a file, and read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.frontend.access.restrictions import Headers, only_value
from pybackend.frontend.access.secrets import Secrets, bearer_key

log = logging.getLogger(__name__)

MOST_KEYS = 1000
"""Each call is compared with all of them, which takes a microsecond for three."""

LEAST_CHARACTERS = 16
"""Shorter keys can be guessed."""

_MOST_FILE_BYTES = 1024 * 1024
_LOOK_S = 2.0
_KEY = re.compile(rb"[\x21-\x7e]+")

NO_KEY = "an API key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
WRONG_KEY = "the API key is not one of this server's: ask its operator for a key"


class ApiKeys:
    """The keys of one server.

    Args:
        file: one key a line; empty lines and those that begin with ``#`` are comments.

    Attributes:
        on_change: called after the keys have changed: decisions that were made with the old ones are void.

    Raises:
        ServerError: the file cannot be read, has no key, or one that is too short.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: tuple[int, ...] = ()
        self._reread = asyncio.Event()
        self.on_change: list[Callable[[], None]] = []
        self._secrets = self._read()

    def refusal(self, headers: Headers) -> str | None:
        """The message for a call without a key of this server; None for one that may pass."""
        key = only_value(headers, b"x-api-key")
        bearer = bearer_key(only_value(headers, b"authorization") or b"")
        given = [each for each in (key, bearer) if each]
        if any(each in self._secrets for each in given):
            return None
        return WRONG_KEY if given else NO_KEY

    def read_again(self) -> None:
        """Read the file soon, whether or not it seems to have changed."""
        self._stamp = ()
        self._reread.set()

    async def follow(self) -> None:
        """Read the file again whenever it changes, until cancelled. A file that cannot be used changes nothing."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._reread.wait()
            self._reread.clear()
            try:
                await self._look()
            except ServerError as error:
                log.error("The API keys stay as they were: %s", error)  # noqa: TRY400  the operator's mistake

    async def _look(self) -> None:
        if await asyncio.to_thread(_stamp_of, self._file) == self._stamp:
            return
        self._secrets = await asyncio.to_thread(self._read)
        log.info("Read the API keys in %s again.", self._file)
        for changed in self.on_change:
            changed()

    def _read(self) -> Secrets:
        self._stamp = _stamp_of(self._file)
        try:
            with self._file.open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                text = opened.read(_MOST_FILE_BYTES + 1)
        except OSError as error:
            raise ServerError(f"--api-key-file {self._file} cannot be read: {error.strerror}") from None
        keys = _keys(text, self._file)
        if mode & stat.S_IROTH:
            log.warning("Every user of this machine can read the API keys in %s: `chmod o-r` it.", self._file)
        return Secrets(keys)


def _stamp_of(file: Path) -> tuple[int, ...]:
    """Changes with the file; empty if there is none."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _keys(text: bytes, file: Path) -> list[bytes]:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [(number, line) for number, line in lines if line and not line.startswith(b"#")]
    what = f"--api-key-file {file}"
    if len(keys) > MOST_KEYS or len(text) > _MOST_FILE_BYTES:
        raise ServerError(f"{what} is too large: {MOST_KEYS} keys and {_MOST_FILE_BYTES} bytes are the most")
    if not keys:
        raise ServerError(f"{what} has no key: write one a line, for example the output of `openssl rand -hex 32`")
    for number, key in keys:
        if not _KEY.fullmatch(key):
            raise ServerError(f"{what}, line {number}: a key has only visible ASCII characters, without blanks")
        if len(key) < LEAST_CHARACTERS:
            raise ServerError(f"{what}, line {number}: a key has {LEAST_CHARACTERS} characters or more")
    return [key for _, key in keys]
