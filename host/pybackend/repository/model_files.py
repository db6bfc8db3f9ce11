"""The directories from which models are loaded: scanned where they are local, and brought up to date from cloud storage."""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from pybackend.apart import apart
from pybackend.author_files import read_beneath
from pybackend.errors import ErrorCode, ModelLoadError, ServerError
from pybackend.modelconfig.bounds import MOST_CONFIG_BYTES
from pybackend.modelconfig.ensemble import part_names_on_disk
from pybackend.modelconfig.loader import load_policy
from pybackend.modelconfig.model_directory import config_file
from pybackend.repository.layout import RepositoryScan
from pybackend.repository.names import ModelNames
from pybackend.repository.reading import choose_versions
from pybackend.repository.remote import LATE_S, RemoteRepositories, moment


class RepositoryFiles:
    """The files of all models."""

    def __init__(self, start: RepositoryScan, remote: RemoteRepositories, config_name: str, names: ModelNames) -> None:
        self._names = names
        self._start = start
        self.remote = remote
        self._config_name = config_name
        self._known, self._known_s = start, time.time()
        self._scanning: asyncio.Task[RepositoryScan] | None = None
        self._scanning_since_s = 0.0

    async def scan(self) -> RepositoryScan:
        """The models as they are now in local repositories, and as they were last listed in others."""
        try:
            return await apart("the repositories", self._start.again, self.remote.listings)
        except ServerError as error:
            raise ModelLoadError(str(error)) from error

    async def configuration(self, name: str) -> tuple[Path, str | None]:
        """The path of a model's configuration file, and its text as it is now; None if there is no such file.

        Raises ModelLoadError if there is no such model, or the file cannot be read.
        """
        scan, _ = await self.look_briefly()
        directory = scan.models.get(name)
        if directory is None:
            raise ModelLoadError(f"no repository has model '{name}'", ErrorCode.NOT_FOUND)
        return await apart(f"the configuration of model '{name}'", self._configuration_in, directory)

    def _configuration_in(self, directory: Path) -> tuple[Path, str | None]:
        name = config_file(directory, self._config_name)
        try:
            text = read_beneath(directory, name, MOST_CONFIG_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return directory / name, None
        except OSError as error:
            raise ModelLoadError(f"{directory / name} cannot be read: {error.strerror}") from None
        return directory / name, text

    async def look(self) -> RepositoryScan:
        """The models as they are now, everywhere."""
        await self.remote.look()
        return await self.scan()

    async def look_briefly(self) -> tuple[RepositoryScan, str]:
        """The models as they are now where that can be found out soon, and as they were known before elsewhere.

        The text says why those of local repositories may be others by now, ``""`` if they are not.
        """
        await self.remote.look_briefly()
        if self._scanning is None:
            self._scanning = asyncio.create_task(self.scan())
            self._scanning_since_s = time.monotonic()
            self._scanning.add_done_callback(self._scanned)
        scanning = self._scanning
        await asyncio.wait({scanning}, timeout=max(0.0, self._scanning_since_s + LATE_S - time.monotonic()))
        if not scanning.done():
            doubt = f"a directory of models has not answered for {LATE_S:g} s"
        elif scanning.exception() is not None:
            doubt = str(scanning.exception())
        else:
            return scanning.result(), ""
        return self._known, f"{doubt}; as it was at {moment(self._known_s)}"

    def _scanned(self, task: asyncio.Task[RepositoryScan]) -> None:
        self._scanning = None
        if not task.cancelled() and task.exception() is None:
            self._known, self._known_s = task.result(), time.time()

    async def fetch(self, name: str, config_json: str | None = None, directory: Path | None = None) -> None:
        """Bring a model's directory up to date, if the model is in cloud storage.

        Raises ModelLoadError: it cannot be downloaded; its directory is as before. Without a ``directory``, all
        repositories are searched.
        """
        place, plain = self._names.split(name)
        choose = partial(self._chosen, config_json)
        if directory is None and self.remote.directories:
            known = (await self.scan()).models.get(name)
            is_local = known is not None and known.parent not in self.remote.listings
            await self.remote.fetch(plain, choose, place, is_elsewhere=is_local)
        else:
            await self.remote.fetch(plain, choose, place, directory)

    async def fetch_configurations(self, names: Iterable[str], directories: Mapping[str, Path]) -> None:
        """Bring the configurations of models in cloud storage, and of all models that these consist of."""
        waiting, seen = list(names), set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen or directories.get(name, Path()).parent not in self.remote.listings:
                continue
            seen.add(name)
            place, plain = self._names.split(name)
            await self.remote.fetch_configuration(plain, place)
            what = f"the configuration of model '{name}'"
            parts = await apart(what, part_names_on_disk, directories[name], self._config_name)
            waiting += self._names.parts(parts, place, directories)

    def _chosen(self, config_json: str | None, directory: Path, versions: Collection[int]) -> Collection[int]:
        """The versions that a load would serve. If the configuration has a mistake, the load reports that. Blocking."""
        if not versions:
            return ()
        try:
            config = load_policy(directory, config_json=config_json, config_name=self._config_name)
            return choose_versions(config, versions).versions
        except ModelLoadError:
            return (max(versions),)
