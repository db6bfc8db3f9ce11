"""API keys: read from a file, and read again when it changes."""

import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

from pybackend.errors import ServerError
from pybackend.frontend.access.restrictions import Headers, Secrets, bearer_key, only_value
from pybackend.frontend.followed_files import FollowedFiles

log = logging.getLogger(__name__)

MOST_KEYS = 1000
"""Each call is compared with all of them, which takes a microsecond for three."""

LEAST_CHARACTERS = 16
"""Shorter keys can be guessed."""

_MOST_FILE_BYTES = 1024 * 1024
_KEY = re.compile(rb"[\x21-\x7e]+")

NO_KEY = "an API key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
WRONG_KEY = "the API key is not one of this server's: ask its operator for a key"


class KnownKeys:
    """The keys of one server, as far as their digests tell.

    ``on_change`` is called after they have changed: decisions that were made with the old ones are void. ``handing`` is
    that of :class:`pybackend.frontend.followed_files.FollowedFiles`.
    """

    READS: ClassVar = frozenset({b"x-api-key", b"authorization"})
    """The headers that may carry a key."""

    def __init__(self, secrets: Secrets) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.handing: list[Callable[[], Awaitable[None]]] = []
        self._secrets = secrets

    @property
    def digests(self) -> Sequence[bytes]:
        """Those of the keys."""
        return self._secrets.digests

    def refusal(self, headers: Headers) -> str | None:
        """The message for a call without a key of this server; None for one that may pass."""
        key = only_value(headers, b"x-api-key")
        bearer = bearer_key(only_value(headers, b"authorization") or b"")
        given = [each for each in (key, bearer) if each]
        if any(each in self._secrets for each in given):
            return None
        return WRONG_KEY if given else NO_KEY

    def take(self, secrets: Secrets) -> None:
        """Use these from now on."""
        self._secrets = secrets
        for changed in self.on_change:
            changed()


class ApiKeys(KnownKeys):
    """The keys in a file. It has one key a line; empty lines and those that begin with ``#`` are comments."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.files = FollowedFiles("API keys", [file], self._read, self.take)
        super().__init__(self.files.first)
        self.handing = self.files.handing

    def _read(self) -> Secrets:
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
