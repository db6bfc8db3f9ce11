"""All repositories in cloud storage of a server."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pybackend.environment.cache import default_cache_directory
from pybackend.errors import ServerError
from pybackend.repository.remote import LATE_S, Choose, Listing, RemoteRepositories
from pybackend.sandbox.runtime_directory import RuntimeDirectory
from pybackend_addons.storage.bucket import Patience, StorageError
from pybackend_addons.storage.download import Progress, terminal
from pybackend_addons.storage.mirror import Mirror
from pybackend_addons.storage.url import AZURE, GCS, S3, RepositoryUrl, located, parse_url

log = logging.getLogger(__name__)

_REPOSITORIES, _ROOMS = "repositories", "rooms"

_MOUNT_VARIABLES = {
    S3: "TRITON_AWS_MOUNT_DIRECTORY",
    GCS: "TRITON_GCS_MOUNT_DIRECTORY",
    AZURE: "TRITON_AZURE_MOUNT_DIRECTORY",
}

_AGAIN_S = 10.0
"""Time between two questions to storage that does not answer."""

_ENTERED = 0o755
_FETCHES = 4
"""Models that are downloaded at the same time; each of them may use several connections."""


class Mirrors(RemoteRepositories):
    """Repositories that are downloaded model by model.

    Raises ServerError: the library is missing, or credentials cannot be used.
    """

    def __init__(
        self, urls: Sequence[str], cache_directory: Path | None = None, patience: Patience | None = None
    ) -> None:
        super().__init__()
        parsed = {url.identity: url for url in (located(parse_url(text)) for text in urls)}
        self._mirrors = [Mirror(url, cache_directory or _place(url), patience or Patience()) for url in parsed.values()]
        self._runtime_directories: dict[Path, RuntimeDirectory] = {}
        self._progress = Progress(terminal())
        self._places = asyncio.Semaphore(_FETCHES)

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(mirror.directory for mirror in self._mirrors)

    @property
    def listings(self) -> Mapping[Path, Listing]:
        return {mirror.directory: mirror.listed.listing for mirror in self._mirrors}

    # Start and stop

    async def open(self) -> None:
        for mirror in self._mirrors:
            place = mirror.cache_directory
            directory = self._runtime_directories.setdefault(place, RuntimeDirectory([place / _ROOMS]))
            try:
                mirror.open(directory.make(_ENTERED), directory.make())
            except OSError as error:
                raise ServerError(
                    f"{place} cannot hold the models of {mirror.url.text}: {error.strerror}. Name another directory by "
                    "--repository-cache-directory"
                ) from None
        try:
            await asyncio.gather(*(mirror.listed.start() for mirror in self._mirrors))
        except StorageError as error:
            await asyncio.to_thread(self.close)
            raise ServerError(f"repository path is not a valid directory: {error}") from None

    def close(self) -> None:
        for directory in self._runtime_directories.values():
            directory.close()

    # Listing

    async def look(self) -> None:
        await asyncio.gather(*(mirror.listed.look() for mirror in self._mirrors))

    async def look_briefly(self) -> None:
        looks = {
            mirror: mirror.listed.begin_look()
            for mirror in self._mirrors
            if not (mirror.listed.trouble or mirror.listed.is_late)
        }
        if looks:
            await asyncio.wait(looks.values(), timeout=LATE_S)
        for mirror, look in looks.items():
            mirror.listed.is_late = not look.done()

    async def ask_again(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN_S)
            for mirror in self._mirrors:
                if mirror.listed.trouble:
                    await asyncio.wait({mirror.listed.begin_look()})

    async def digests(self) -> dict[Path, int]:
        found = await asyncio.gather(*(mirror.listed.read_digests() for mirror in self._mirrors))
        return {
            mirror.directory / name: digest
            for mirror, digests in zip(self._mirrors, found, strict=True)
            for name, digest in digests.items()
        }

    async def follow(self, period_s: float, settle_s: float, on_change: Callable[[], None]) -> None:
        following = [self._follow(mirror, period_s, settle_s, on_change) for mirror in self._mirrors]
        await asyncio.gather(*following)

    async def _follow(self, mirror: Mirror, period_s: float, settle_s: float, on_change: Callable[[], None]) -> None:
        changed, trouble = False, ""
        while True:
            await asyncio.sleep(settle_s if changed else period_s)
            before = mirror.listed.digests
            try:
                digests = await mirror.listed.read_digests()
                await mirror.remove_others(self.in_use)
            except StorageError as error:
                if trouble != str(error):
                    log.error(  # noqa: TRY400
                        "%s cannot be searched for changes, and its models stay as they are: %s", mirror.url.text, error
                    )
                trouble = str(error)
                continue
            except Exception:  # the next listing may succeed
                log.exception("a search for changes of %s failed", mirror.url.text)
                continue
            trouble = ""
            changed_before, changed = changed, digests != before
            if changed or changed_before:
                on_change()

    # Files

    async def fetch(
        self,
        name: str,
        choose: Choose,
        place: str = "",
        directory: Path | None = None,
        *,
        is_elsewhere: bool = False,
    ) -> None:
        for mirror in self._at(place):
            if directory is not None and directory.parent != mirror.directory:
                continue
            if is_elsewhere and not await mirror.listed.may_have(name):
                continue
            async with self._places:
                await mirror.fetch(name, choose, self.in_use, self._progress)

    async def fetch_configuration(self, name: str, place: str = "") -> None:
        for mirror in self._at(place):
            if name in mirror.listed.names:
                async with self._places:
                    await mirror.fetch_configuration(name, self._progress)

    def _at(self, place: str) -> list[Mirror]:
        return [mirror for mirror in self._mirrors if place in {"", mirror.url.text}]

    async def tidy(self, directory: Path) -> None:
        for mirror in self._mirrors:
            if directory.parent == mirror.directory:
                try:
                    await mirror.tidy(directory.name, self.in_use)
                except StorageError as error:
                    log.warning("old versions in %s stay: %s", directory, error)


def cache_directories(urls: Sequence[str], chosen: Path | None) -> list[Path]:
    """The directories that keep what is downloaded from repositories."""
    return list(dict.fromkeys(chosen or _place(parse_url(url)) for url in urls))


def _place(url: RepositoryUrl) -> Path:
    """Where the objects of a repository are kept, unless the operator says otherwise."""
    mount = os.environ.get(_MOUNT_VARIABLES[url.scheme])
    return Path(mount).absolute() / "pybackend" if mount else default_cache_directory() / _REPOSITORIES
