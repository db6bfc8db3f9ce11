"""The models of this server: their start and end."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from pybackend.apart import apart
from pybackend.errors import ModelLoadError
from pybackend.instance.services import StubServices
from pybackend.model.ensemble.model import EnsembleModel
from pybackend.model.host import ModelHost, ModelRouter, NotLoaded
from pybackend.model.model import Model
from pybackend.model.python_model import PythonModel
from pybackend.model.source import ModelSource
from pybackend.modelconfig.ensemble import part_names
from pybackend.repository.catalogue import ModelCatalogue
from pybackend.repository.changes import ModelChanges
from pybackend.repository.control import ModelControl
from pybackend.repository.entry import ModelEntry
from pybackend.repository.file_override import OverrideDirectories
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan, model_directory
from pybackend.repository.life_cycle import ModelLifeCycle
from pybackend.repository.model_files import RepositoryFiles
from pybackend.repository.poller import Poller
from pybackend.repository.reading import read_model, served_versions
from pybackend.repository.remote import RemoteRepositories
from pybackend.sandbox.runtime_directory import RuntimeDirectory

log = logging.getLogger(__name__)


class ModelRepository:
    """The models of one server."""

    def __init__(self, scan: RepositoryScan, host: ModelHost, remote: RemoteRepositories) -> None:
        self.host = host
        self.catalogue = ModelCatalogue(host.settings.config_name, scan.namespaces, scan.pools)  # all by name
        self._scan = scan
        self._directories = OverrideDirectories(RuntimeDirectory(host.runtime_places))
        self.remote = remote
        settings, names = host.settings, self.catalogue.names
        self._files = RepositoryFiles(scan, remote, settings.config_name, names)
        self.life_cycle = ModelLifeCycle(settings, self._directories, remote, host.own_files)  # of their versions
        remote.in_use = self.life_cycle.versions_of
        # changes them on request
        self.control = ModelControl(self.catalogue, self._files, is_explicit=settings.is_explicit)
        self._poller: Poller | None = None
        self._following: asyncio.Task[None] | None = None

    # Start and stop

    async def load_all(self, services: StubServices, router: ModelRouter) -> bool:
        """Load every model selected for the start; True if all of them are ready afterwards.

        From now on there are models: ``services`` answer what their code asks, and ``router`` runs the steps of
        ensembles.
        """
        make = partial(_make, self.host, services, router)
        changes = ModelChanges(self.catalogue, self.host, self._directories, self._files, self.life_cycle, make)
        for warning in self._scan.warnings:
            log.warning("%s", warning)
        wanted = self.host.settings.startup_models
        stored = {*self._scan.models, *self._scan.duplicates}
        names = stored if wanted is None else self.catalogue.names.at_start(wanted, stored)
        if self.host.settings.looks_every_s is not None:
            self._poller = Poller(self.catalogue, changes, self._scan, self.host)
            await self._poller.remember()
        start = RepositoryStart(self.catalogue, changes, self._scan, self.host)
        await asyncio.gather(asyncio.to_thread(self._directories.remove_abandoned), start.load(names))
        self.control.open(changes)
        return all(entry.is_loaded for entry in self.catalogue.entries.values())

    def follow(self) -> None:
        """Begin to follow changes of the repositories, if the control mode says so; after :meth:`load_all`.

        In the other modes, only cloud storage that does not answer is asked until it does.
        """
        if self._poller is not None:
            self._following = asyncio.create_task(self._poller.run())
        elif self.remote.listings:
            self._following = asyncio.create_task(self.remote.ask_again())

    async def unload_all(self, deadline_s: float) -> bool:
        """Unload everything by a deadline of the loop's clock; True if nothing had to be cut short."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self.control.close()
        in_time = await self.life_cycle.unload_all(deadline_s)
        self._directories.close()
        return in_time


def _make(host: ModelHost, services: StubServices, router: ModelRouter, source: ModelSource) -> Model:
    if source.config.is_ensemble:
        return EnsembleModel(source, host, router)
    return PythonModel(source, host, services)


class RepositoryStart:
    """The first loads of a server."""

    def __init__(self, catalogue: ModelCatalogue, changes: ModelChanges, scan: RepositoryScan, host: ModelHost) -> None:
        self._catalogue = catalogue
        self._changes = changes
        self._scan = scan
        self._host = host
        self._starts: dict[str, asyncio.Task[None]] = {}

    async def load(self, names: Iterable[str]) -> None:
        """Load models by their full names, and the parts of ensembles among them.

        Failures are noted in the catalogue.
        """
        for name in sorted(names):
            self._start(name)
        try:
            await asyncio.gather(*self._starts.values())
            await asyncio.gather(*self._starts.values())  # includes parts that only ensembles need
        finally:
            for start in self._starts.values():
                start.cancel()

    def _start(self, name: str, *, as_part: bool = False) -> None:
        entry = self._catalogue.new_entry(name, as_part=as_part)
        self._starts[name] = asyncio.create_task(self._load(name, entry))

    async def _load(self, name: str, entry: ModelEntry) -> None:
        if name in self._scan.duplicates:
            entry.not_loaded = NotLoaded(DUPLICATE_REASON, known=False)
            return
        try:
            await self._changes.files.fetch(name, directory=self._scan.models.get(name))
            # Before taking the lock, so that the first model to load knows which others share its environment.
            source = await read_model(model_directory(self._scan, name), self._host, namespace=entry.namespace)
            self._host.environments.uses.note(source.directory, source.environment_path)
            async with self._changes.locks.loading(name):
                versions = await served_versions(source, self._host)
                if not source.config.is_ensemble:
                    with suppress(ModelLoadError):  # the failed version has logged the reason; the others serve
                        await self._changes.change(entry, versions)
                    return
            parts = self._catalogue.names.parts(part_names(source.config), entry.namespace, self._scan.models)
            await self._start_parts(name, parts)
        except ModelLoadError as error:
            entry.not_loaded = NotLoaded(error.reason())
            log.error("failed to load '%s': %s", name, error.reason())  # noqa: TRY400  no bug of ours
            return
        with suppress(ModelLoadError):
            await self._changes.change(entry, versions)

    async def _start_parts(self, name: str, parts: Sequence[str]) -> None:
        """Wait for an ensemble's parts, without holding a place among the loads, because the parts need those."""
        await self._changes.files.fetch_configurations(parts, self._scan.models)
        check = self._catalogue.ensembles.check
        await apart(f"the parts of ensemble '{name}'", check, name, parts, self._scan.models)
        for part in parts:
            if part not in self._starts and part in self._scan.models:
                self._start(part, as_part=True)
        starts = [self._starts[part] for part in parts if part in self._starts]
        if starts:
            await asyncio.wait(starts)
