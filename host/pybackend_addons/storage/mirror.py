"""One repository in cloud storage, and the local directory that shows its models."""

import asyncio
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pybackend.apart import begin_apart
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, CONFIGS_DIRECTORY
from pybackend.repository.remote import Choose, InUse
from pybackend_addons.storage.bucket import Bucket, ChangedError, Patience, StorageError, Unreachable
from pybackend_addons.storage.download import Downloader, Progress
from pybackend_addons.storage.listed_repository import ListedRepository
from pybackend_addons.storage.local_model import LocalModel, entries_of
from pybackend_addons.storage.object_cache import ModelObjects, ObjectCache
from pybackend_addons.storage.remote_files import RemoteFile, RemoteModel, remote_model
from pybackend_addons.storage.url import RepositoryUrl

log = logging.getLogger(__name__)

_TRIES = 5


class Mirror:
    """A repository.

    Raises ServerError: the library is missing, or the credentials cannot be used.
    """

    def __init__(self, url: RepositoryUrl, cache_directory: Path, patience: Patience) -> None:
        self.url = url
        self.cache_directory = cache_directory
        self.directory = Path()  # the local directory that shows it; set by :meth:`open`
        self._bucket = Bucket(url, patience)
        self._downloader = Downloader(self._bucket)
        self._cache = ObjectCache(cache_directory, url)
        # the repository as it was last listed
        self.listed = ListedRepository(url, self._bucket, self._cache, cache_directory)
        self._staging = Path()
        self._models: dict[str, LocalModel] = {}
        self._fetched: set[str] = set()
        """Models with more local files than the configuration."""

    def open(self, directory: Path, staging: Path) -> None:
        """Take the local directories, which are on the cache's file system. Blocking.

        Raises OSError: the cache is not writable.
        """
        self.directory, self._staging = directory, staging
        self._cache.open()

    async def remove_others(self, in_use: InUse) -> None:
        """Remove the local files of models that the repository has no longer, unless a version of theirs is alive."""
        gone = [name for name in self._models if name not in self.listed.names and not in_use(self.directory / name)]
        for name in gone:
            await asyncio.to_thread(self._models.pop(name).remove)
        await asyncio.to_thread(self._cache.remove_others, self.listed.names)

    async def fetch(self, name: str, choose: Choose, in_use: InUse, progress: Progress) -> None:
        """Bring a model's directory up to date: the versions to serve, and all files beside the versions.

        The directory changes when everything has arrived. If there is no such model, :attr:`names` says so.

        Raises StorageError: it cannot be downloaded; the directory is as before. Raises ModelLoadError: a name in it
        cannot be a file's.
        """
        async with self._objects(name) as objects:
            model, files = await self._found(name, objects, choose, progress)
            if model is None:
                self.listed.names -= {name}
                return
            self.listed.names |= {name}
            local = self._local(name)
            entries = entries_of(model, files)
            await asyncio.to_thread(local.put, entries, objects, _names(in_use(local.directory)))
            self._fetched.add(name)
            with suppress(OSError):  # only a start without the storage would need it
                await asyncio.to_thread(objects.keep_listing, model)
            await asyncio.to_thread(objects.prune)

    async def fetch_configuration(self, name: str, progress: Progress) -> None:
        """Bring a model's configuration, unless it was brought before.

        Raises ModelLoadError: a name in the model cannot be a file's.
        """
        local = self._local(name)
        if not local.is_empty:
            return
        async with self._objects(name) as objects:
            try:
                model = await self._files(name)
            except Unreachable:
                kept = await asyncio.to_thread(objects.kept_listing)
                if kept is None:
                    raise
                model = kept
            files = [file for path, file in model.files.items() if _is_configuration(path)]
            try:
                await self._bring(name, files, objects, progress)
            except ChangedError:
                return  # the model's own load has the reason
            if local.is_empty:
                await asyncio.to_thread(local.put, entries_of(model, files), objects, ())

    async def tidy(self, name: str, in_use: InUse) -> None:
        """Remove the files of versions that are neither alive nor to be served."""
        local = self._models.get(name)
        if local is None:
            return
        async with self._objects(name) as objects:
            used = in_use(local.directory)
            if not used and name not in self.listed.names:
                self._models.pop(name, None)
                await asyncio.to_thread(local.remove)
            else:
                await asyncio.to_thread(local.tidy, _names(used))
            await asyncio.to_thread(objects.prune)

    def _local(self, name: str) -> LocalModel:
        return self._models.setdefault(name, LocalModel(self.directory / name, self._staging))

    async def _files(self, name: str) -> RemoteModel:
        return remote_model(name, await self._bucket.files(name), self.url.text)

    async def _found(
        self, name: str, objects: ModelObjects, choose: Choose, progress: Progress
    ) -> tuple[RemoteModel | None, list[RemoteFile]]:
        """A model and the files that it needs, all of them in the cache.

        The first load of a server that cannot reach the storage uses what the model was made of the last time.
        """
        is_first = name not in self._fetched
        kept = await self._kept(name, objects, choose) if is_first and self.listed.trouble else None
        if kept is not None:
            return kept
        try:
            return await self._complete(name, objects, choose, progress)
        except Unreachable:
            kept = await self._kept(name, objects, choose) if is_first else None
            if kept is None:
                raise
            return kept

    async def _kept(
        self, name: str, objects: ModelObjects, choose: Choose
    ) -> tuple[RemoteModel, list[RemoteFile]] | None:
        """The same without the storage; None if the cache is not complete."""
        model = await asyncio.to_thread(objects.kept_listing)
        if model is None or await self._missing(shared := model.shared(), objects):
            return None
        own = await self._of_chosen(model, objects, choose)
        if await self._missing(own, objects):
            return None
        log.warning(
            "model '%s' is loaded from the cache: %s does not answer, and may have a newer state", name, self.url.text
        )
        return model, [*shared, *own]

    async def _complete(
        self, name: str, objects: ModelObjects, choose: Choose, progress: Progress
    ) -> tuple[RemoteModel | None, list[RemoteFile]]:
        """Download what a model needs; its files all belong to one listing."""
        model = await self._files(name)
        for _ in range(_TRIES):
            if not model.files and not model.versions:
                return None, []
            try:
                files, is_new = await self._needed(model, objects, choose, progress)
            except ChangedError:
                model = await self._files(name)
                continue
            after = await self._files(name) if is_new else model
            if after == model:
                return model, files
            model = after
        raise StorageError(f"'{name}' in {self.url.text} changes while it is being downloaded: load it again later")

    async def _needed(
        self, model: RemoteModel, objects: ModelObjects, choose: Choose, progress: Progress
    ) -> tuple[list[RemoteFile], bool]:
        """The files that a model needs, downloaded; True if one of them was missing."""
        shared = model.shared()
        is_new = await self._bring(model.name, shared, objects, progress)
        own = await self._of_chosen(model, objects, choose)
        is_new = await self._bring(model.name, own, objects, progress) or is_new
        return [*shared, *own], is_new

    async def _of_chosen(self, model: RemoteModel, objects: ModelObjects, choose: Choose) -> list[RemoteFile]:
        """The files of the versions to serve; those beside the versions must be there."""
        numbers = {int(version): version for version in model.versions if version == str(int(version))}
        draft = await asyncio.to_thread(self._local(model.name).draft, model, objects)
        try:
            chosen = await asyncio.to_thread(choose, draft, list(numbers))
        finally:
            await asyncio.to_thread(shutil.rmtree, draft.parent, ignore_errors=True)
        return model.of_versions(numbers[number] for number in chosen)

    @staticmethod
    async def _missing(files: list[RemoteFile], objects: ModelObjects) -> list[RemoteFile]:
        return await asyncio.to_thread(lambda: [file for file in files if not objects.has(file)])

    async def _bring(self, name: str, files: list[RemoteFile], objects: ModelObjects, progress: Progress) -> bool:
        """Download what is not in the cache; True if there was anything."""
        missing = await self._missing(files, objects)
        if not missing:
            return False
        transfer = progress.begin(name, self.url.text, len(missing), sum(file.nbytes for file in missing))
        complete = False
        try:
            await self._downloader.fetch(missing, objects, transfer)
            complete = True
        finally:
            transfer.end(complete=complete)
        return True

    @asynccontextmanager
    async def _objects(self, name: str) -> AsyncIterator[ModelObjects]:
        objects = self._cache.model(name)
        cancelled = threading.Event()
        try:
            try:
                await (await begin_apart(objects.take, cancelled))
            except OSError as error:
                raise StorageError(
                    f"{self.cache_directory} cannot be written: {error.strerror}. Name another directory by "
                    "--repository-cache-directory"
                ) from None
            yield objects
        finally:
            cancelled.set()
            await asyncio.to_thread(objects.release)


def _is_configuration(path: str) -> bool:
    return path == CONFIG_FILENAME or path.startswith(f"{CONFIGS_DIRECTORY}/")


def _names(versions: Collection[int]) -> list[str]:
    return [str(version) for version in versions]
