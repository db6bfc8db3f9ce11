"""Asks cloud storage what it holds. The one module that knows the library, obstore."""

import asyncio
import atexit
import functools
import hashlib
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pybackend import __version__
from pybackend.errors import ErrorCode, ModelLoadError, ServerError
from pybackend_addons.storage.remote_files import MOST_FILES, RemoteFile
from pybackend_addons.storage.url import AZURE, GCS, S3, Configuration, RepositoryUrl, environment_configuration
from pybackend_wire.installation import install_command

if TYPE_CHECKING:
    from obstore import GetOptions

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LAST_WORDS_S = 0.2
"""Pause before the interpreter ends: threads of the library that have just delivered a result still need it."""

_PAGE = 1000
_MOST_NAMES = 100_000
LINE_S, LONGEST_LISTING_S = 10.0, 300.0
"""How often the log names a listing that goes on, and when the listing of the top is given up."""

_CONNECT_TIMEOUT, _READ_TIMEOUT, _LONGEST_REQUEST = timedelta(seconds=5), timedelta(seconds=20), timedelta(hours=12)
_CHUNK_BYTES = 1024 * 1024

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED = frozenset({"400", "401", "403"})
_BEFORE_SLASH = "a blank or one of !\"#$%&'()*+,-"
_CREDENTIALS = {
    S3: "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for temporary keys, AWS_SESSION_TOKEN",
    GCS: "GOOGLE_APPLICATION_CREDENTIALS",
    AZURE: "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
}


class StorageError(ModelLoadError):
    """Cloud storage has refused something for good. ``str()`` is one sentence."""


class Unreachable(StorageError):
    """Cloud storage does not answer; another attempt may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.UNAVAILABLE)


class BadNameError(StorageError):
    """An object has a name that the library refuses, and with it the whole page of a listing."""


class ChangedError(Exception):
    """An object is gone, or is another one than the listing said."""


@dataclass(frozen=True)
class Patience:
    """How long to try again while storage does not answer."""

    total_s: float = 30.0  # from the first failure, without any progress, to the last attempt
    first_pause_s: float = 0.2  # before the second attempt; each further pause is twice as long, and varies by chance
    longest_pause_s: float = 5.0  # the limit on a pause

    async def persist(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat an attempt that raises :class:`Unreachable`. Raises Unreachable: it still does at the end."""
        loop = asyncio.get_running_loop()
        end_s, pause_s = loop.time() + self.total_s, self.first_pause_s
        while True:
            try:
                return await attempt()
            except Unreachable as error:
                if loop.time() + pause_s > end_s:
                    raise
                if pause_s == self.first_pause_s:
                    log.warning("%s; trying again for up to %g s", error.message, self.total_s)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311  no secret
            pause_s = min(pause_s * 2, self.longest_pause_s)


class Bucket:
    """The objects of a repository; paths are below it.

    Raises ServerError: the library is missing, or the credentials cannot be used.
    """

    def __init__(self, url: RepositoryUrl, patience: Patience) -> None:
        self.url = url
        self.patience = patience  # as given; it may be changed
        try:
            import obstore
            from obstore import store
        except ImportError:
            raise ServerError(
                f"the model repository {url.text} is in cloud storage, and the package obstore is missing: "
                f"{install_command('cloud')} installs it"
            ) from None
        self._library = obstore
        self._complaint = ""
        _pause_at_exit()
        try:
            self._store = _open(store, url, environment_configuration(url))
        except (obstore.exceptions.BaseError, ValueError, OSError) as error:
            raise ServerError(f"the credentials for {url.text} cannot be used: {_first_line(error)}") from None

    async def names(self) -> list[str]:
        """The names of the directories at the top, sorted."""

        async def listed() -> list[str]:
            page = await self._asked(self._library.list_with_delimiter_async(self._store), "")
            return sorted(page["common_prefixes"])

        try:
            async with asyncio.timeout(LONGEST_LISTING_S):
                with self._said_to_go_on():
                    try:
                        return await self.patience.persist(listed)
                    except BadNameError as error:
                        names = await self.patience.persist(self._names_of_letters)
                        if self._complaint != str(error):
                            self._complaint = str(error)
                            log.warning("%s. Until then, names that begin with %s are not found", error, _BEFORE_SLASH)
                        return names
        except TimeoutError:
            raise Unreachable(
                f"the listing of {self.url.text} has not ended after {LONGEST_LISTING_S:g} s: name a path in the bucket "
                "that holds models only"
            ) from None

    async def _names_of_letters(self) -> list[str]:
        """The same from a listing of all objects that begins after ``/``: an empty name, ``.`` or ``..`` comes before."""
        found = set()
        async for file in self._list("", offset="0"):
            name, slash, _ = file.path.partition("/")
            if slash:
                found.add(name)
                self._check_count(found)
        return sorted(found)

    def _check_count(self, names: Sized) -> None:
        if len(names) > _MOST_NAMES:
            raise StorageError(f"{self.url.text} has more than {_MOST_NAMES} directories: divide the repository")

    @contextmanager
    def _said_to_go_on(self) -> Iterator[None]:
        """While the block runs, the log has a line from time to time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        timer: asyncio.TimerHandle

        def say() -> None:
            nonlocal timer
            log.info("listing %s: it goes on after %d s", self.url.text, loop.time() - began_s)
            timer = loop.call_later(LINE_S, say)

        timer = loop.call_later(LINE_S, say)
        try:
            yield
        finally:
            timer.cancel()

    async def files(self, name: str) -> list[RemoteFile]:
        """The objects below a directory."""

        async def listed() -> list[RemoteFile]:
            found: list[RemoteFile] = []
            async for file in self._list(name):
                found.append(file)
                if len(found) > MOST_FILES:
                    raise StorageError(
                        f"'{name}' in {self.url.text} has more than {MOST_FILES} objects: divide the model"
                    )
            return found

        return await self.patience.persist(listed)

    async def digests(self) -> dict[str, int]:
        """For each directory at the top, a number that changes when an object below it does."""

        async def listed() -> dict[str, int]:
            found: dict[str, int] = {}
            async for file in self._list(""):
                name, slash, _ = file.path.partition("/")
                if slash or not file.nbytes:  # an empty object may stand for a directory
                    found[name] = _joined(found.get(name, 0), file)
                    self._check_count(found)
            return found

        try:
            with self._said_to_go_on():
                digests = await self.patience.persist(listed)
        except BadNameError:  # it hides all others
            digests = {name: await self._digest(name) for name in await self.names()}
        return digests

    async def _digest(self, name: str) -> int:
        digest = 0
        try:
            for file in await self.files(name):
                digest = _joined(digest, file)
        except Unreachable:
            raise
        except StorageError as error:
            return hash(error.message)  # the load of this model has the reason
        return digest

    async def _list(self, name: str, offset: str | None = None) -> AsyncIterator[RemoteFile]:
        pages = self._library.list(self._store, name or None, offset=offset, chunk_size=_PAGE).__aiter__()
        while True:
            try:
                page = await self._asked(anext(pages), name)
            except StopAsyncIteration:
                return
            for row in page:
                yield RemoteFile(row["path"], row["size"], row["e_tag"] or "", row["last_modified"])

    async def read(self, file: RemoteFile, start: int, stop: int) -> AsyncGenerator[memoryview]:
        """The bytes of an object from one offset to another, in pieces of about a megabyte.

        Raises Changed: the object is another one now.
        """
        options: GetOptions = {"range": (start, stop)}
        if file.tag:
            options["if_match"] = f'"{_bare(file.tag)}"'
        result = await self._asked(self._library.get_async(self._store, file.path, options=options), file.path)
        if result.meta["size"] != file.nbytes or _bare(result.meta["e_tag"] or file.tag) != _bare(file.tag):
            raise ChangedError
        pieces = result.stream(min_chunk_size=_CHUNK_BYTES).__aiter__()
        while True:
            try:
                yield memoryview(await self._asked(anext(pieces), file.path))
            except StopAsyncIteration:
                return

    async def _asked(self, answer: Awaitable[Any], what: str) -> Any:
        """Wait for an answer, and turn the library's errors into ours."""
        try:
            return await answer
        except (self._library.exceptions.BaseError, FileNotFoundError, ValueError, OSError) as error:
            raise self._error(error, what) from None

    def _error(self, error: Exception, what: str) -> Exception:
        text = str(error)
        code, status = _CODE.search(text), _STATUS.search(text)
        reason = code[1] if code else f"status {status[1]}" if status else ""
        place = f"'{what}' in {self.url.text}" if what else self.url.text
        exceptions = self._library.exceptions
        if isinstance(error, exceptions.InvalidPathError):
            return BadNameError(
                f"{place} has an object with a name that cannot be a file's path: {_first_line(error)}. Rename or remove it"
            )
        if reason in {"NoSuchBucket", "ContainerNotFound"} or (status and status[1] == "404" and not what):
            return StorageError(f"{self.url.text} does not exist: there is no bucket '{self.url.bucket}' ({reason})")
        if isinstance(error, FileNotFoundError | exceptions.PreconditionError):
            return ChangedError()
        if "169.254.169.254" in text or "metadata.google.internal" in text:
            return StorageError(
                f"there are no credentials for {self.url.text}: set {_CREDENTIALS[self.url.scheme]}, or run on a machine "
                "with a role"
            )
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or (
            status and status[1] in _DENIED
        ):
            return StorageError(
                f"access to {place} is denied ({reason or _first_line(error)}): check {_CREDENTIALS[self.url.scheme]}"
            )
        if "redirect" in text:
            return StorageError(f"{self.url.text} lies in another region: set AWS_DEFAULT_REGION to that")
        return Unreachable(f"{place} cannot be read: {reason or _first_line(error)}")


@functools.cache
def _pause_at_exit() -> None:
    """Arrange for the pause before the interpreter ends, once per process."""
    atexit.register(time.sleep, _LAST_WORDS_S)


def _open(store: Any, url: RepositoryUrl, options: Configuration) -> Any:
    endpoint = url.endpoint or str(options.get("endpoint", ""))
    common: dict[str, Any] = {
        "prefix": url.prefix or None,
        "client_options": {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": _CONNECT_TIMEOUT,
            "read_timeout": _READ_TIMEOUT,
            "timeout": _LONGEST_REQUEST,
            "user_agent": f"pybackend/{__version__}",
        },
        "retry_config": {"max_retries": 0},  # patience is ours
    }
    if url.scheme == S3:
        given = options | ({"endpoint": url.endpoint} if url.endpoint else {})
        return store.S3Store(url.bucket, **common, **given)
    if url.scheme == GCS:
        return store.GCSStore(url.bucket, **common, **options)
    return store.AzureStore(url.bucket, **common, **{"account_name": url.account, **options})


def _joined(digest: int, file: RemoteFile) -> int:
    """Add an object to the digest of a directory, whatever the order."""
    return (digest + int.from_bytes(hashlib.sha256(file.identity.encode()).digest())) % 2**256


def _bare(tag: str) -> str:
    """An ETag without quotation marks, which Azure leaves out in listings."""
    return tag.removeprefix("W/").strip('"')


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
