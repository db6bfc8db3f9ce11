"""The models of this server: their start and end, and the changes that clients and models request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pybackend.author_files.apart import apart
from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.model.host import ModelHost
from pybackend.model.model import Model
from pybackend.modelconfig.ensemble import part_names
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport
from pybackend.repository.candidate import candidates_of, read_model
from pybackend.repository.catalogue import ModelCatalogue
from pybackend.repository.changes import LoadRequest, ModelChanges, check_name
from pybackend.repository.entry import ModelEntry, ModelStatus, change_traffic
from pybackend.repository.file_override import OverrideDirectories, check_keys
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan, model_directory
from pybackend.repository.mirror.mirrors import Mirrors
from pybackend.repository.mirror.remote_files import Listing, moment
from pybackend.repository.poller import Poller
from pybackend.repository.reports import Unfinished
from pybackend.sandbox.grant import Grant
from pybackend.sandbox.runtime_directory import RuntimeDirectory

log = logging.getLogger(__name__)

MOST_BROUGHT_BYTES = 1024 * 1024 * 1024
"""Limit on the files in memory that all open load requests bring. One request alone may bring more."""


class ModelRepository:
    """The models of one server."""

    def __init__(self, scan: RepositoryScan, host: ModelHost, mirrors: Mirrors | None = None) -> None:
        self.host = host
        self.catalogue = ModelCatalogue(host.settings.config_name, scan.namespaces)  # all of them by name
        self._scan = scan
        self._directories = OverrideDirectories(RuntimeDirectory(host.runtime_places))
        self._changes = ModelChanges(self.catalogue, scan, host, self._directories, mirrors or Mirrors())
        self._running: set[asyncio.Task[None]] = set()
        self._poller: Poller | None = None
        self._brought_bytes = 0
        self._closed = False
        self._doubt = ""

    # Start and stop

    async def load_all(self) -> bool:
        """Load every model selected for the start; True if all of them are ready afterwards."""
        for warning in self._scan.warnings:
            log.warning("%s", warning)
        wanted = self.host.settings.startup_models
        stored = {*self._scan.models, *self._scan.duplicates}
        names = stored if wanted is None else self.catalogue.names.at_start(wanted, stored)
        if self.host.settings.looks_every_s is not None:
            self._poller = Poller(self.catalogue, self._changes, self._scan, self.host)
            await self._poller.remember()
        start = RepositoryStart(self.catalogue, self._changes, self._scan, self.host)
        await asyncio.gather(asyncio.to_thread(self._directories.remove_abandoned), start.load(names))
        return all(entry.is_loaded for entry in self.catalogue.entries.values())

    def follow(self) -> None:
        """Begin to follow changes of the repositories, if the control mode says so; after :meth:`load_all`.

        In the other modes, only cloud storage that does not answer is asked until it does.
        """
        files = self._changes.files
        if self._poller is None and not files.listings:
            return
        task = asyncio.create_task(files.ask_again() if self._poller is None else self._poller.run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def unload_all(self, deadline_s: float) -> bool:
        """Unload everything by a deadline of the loop's clock; True if nothing had to be cut short."""
        self._closed = True
        running = list(self._running)
        for change in running:
            change.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        in_time = await self._changes.life_cycle.unload_all(deadline_s)
        self._directories.close()
        return in_time

    def unfinished(self) -> list[Unfinished]:
        """The versions that :meth:`unload_all` waits for."""
        return self._changes.life_cycle.unfinished()

    def alive(self, name: str) -> list[Model]:
        """The versions of a model that have resources, even if they are loading, or answer their last requests."""
        return self._changes.life_cycle.alive(self.catalogue.entry(name).full_name)

    def trim(self) -> None:
        """Release idle memory of all models; called about once a second."""
        self._changes.life_cycle.trim()

    # Model control at run time

    async def load_model(self, name: str, request: LoadRequest, *, asked_by: str = "", home: str = "") -> None:
        """Load a model, or update a loaded one; versions that have not changed since their last load stay as they are.

        The load continues even if the caller stops waiting. Old versions serve until the new ones are ready, and keep
        serving if a new one fails.

        Raises InferenceError: UNAVAILABLE if model control is disabled, or not permitted to this model; INVALID_ARG or
        INTERNAL if loading failed, with the reason. The request's files must not change before this returns.
        ``asked_by`` waits for this while it is being initialised; ``home`` is its namespace, ``""`` for a client.
        """
        self.check_control(name if request.is_retry else "")
        if self._scan.namespaces is not None:
            name = self.catalogue.names.to_load(name, home, (await self._look()).models)
        check_name(self.catalogue.names.split(name)[1])
        check_keys(request.files)
        grant = request.grant
        if grant is not None:
            grant.check_control(name)
            if request.config_json is not None or request.files:
                models = (await self._look()).models
                await asyncio.to_thread(grant.check_override, name, models.get(grant.model), models.get(name))
        self._brought_bytes += request.nbytes
        try:
            if request.nbytes < self._brought_bytes > MOST_BROUGHT_BYTES:
                raise InferenceError(
                    f"other load requests bring {self._brought_bytes - request.nbytes} bytes of files now, and "
                    f"{request.nbytes} more would exceed the limit of {MOST_BROUGHT_BYTES}: try again when they have ended",
                    ErrorCode.UNAVAILABLE,
                )
            await self._carry_out(self._changes.load(name, request, asked_by))
        finally:
            self._brought_bytes -= request.nbytes

    async def unload_model(
        self,
        name: str,
        *,
        unload_dependents: bool = False,
        asked_by: str = "",
        grant: Grant | None = None,
        home: str = "",
    ) -> None:
        """Begin to unload a model: it accepts no more requests and answers those it has. Unknown names are ignored.

        Raises InferenceError: UNAVAILABLE if model control is disabled, or not permitted to this model; INVALID_ARG if
        several models have the name. With ``unload_dependents``, parts that were loaded only for this ensemble go too.
        ``grant`` is that of a confined requester.
        """
        self.check_control()
        name = self.catalogue.names.known(name, home)
        if grant is not None:
            grant.check_control(name)
        await self._carry_out(self._changes.begin_unload(name, asked_by, unload_dependents=unload_dependents))

    async def change_traffic(self, name: str, change: TrafficChange) -> TrafficReport:
        """Change the rules for requests to a model that name no version.

        Raises InferenceError: UNAVAILABLE, model control is disabled; INVALID_ARG, there is no such model, or it cannot
        have these rules.
        """
        self.check_control()
        name = self.catalogue.names.known(name)
        async with self._changes.locks.changing(name):
            return change_traffic(self.catalogue.entry(name), change)

    async def unload(self, name: str, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Unload a model and wait for its end; True if nothing had to be cut short."""
        name = self.catalogue.names.known(name)
        async with self._changes.locks.changing(name):
            ends = self._changes.retire(name, drain_timeout_s, finalize_timeout_s)
        return all(await asyncio.gather(*map(asyncio.shield, ends)))

    async def read_index(self) -> list[ModelStatus]:
        """The repository index: the known models, and those that the repositories hold now.

        A repository that does not answer is shown as it was when it last did: the reasons of its other models say so.
        """
        scan, doubt = await self._changes.files.look_briefly()
        if doubt and doubt != self._doubt:
            log.warning("the repository index may be out of date: %s", doubt)
        self._doubt = doubt
        rows = self.catalogue.index(scan.models, scan.duplicates)
        doubts = {
            place: f"as listed at {moment(listing.listed_s)}: {listing.doubt}"
            for place, listing in self.listings.items()
            if listing.doubt
        }
        if not (doubts or doubt):
            return rows
        places = {name: directory.parent for name, directory in scan.models.items()}
        return [
            row
            if row.state or row.full_name not in places
            else replace(
                row, reason=doubts.get(places[row.full_name], "" if places[row.full_name] in self.listings else doubt)
            )
            for row in rows
        ]

    @property
    def listings(self) -> Mapping[Path, Listing]:
        """The repositories in cloud storage as they were last listed, by the local directories that show them."""
        return self._changes.files.listings

    async def _look(self) -> RepositoryScan:
        try:
            return await self._changes.files.look()
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error

    async def _carry_out(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _STOPPING.again() from None
            raise

    def check_control(self, to_load: str = "") -> None:
        """Check that models may be loaded and unloaded on request.

        Raises InferenceError: UNAVAILABLE, they may not. A model ``to_load`` as it is in its repository may be loaded
        in every control mode if it has failed.
        """
        if not (self.host.settings.is_explicit or (to_load and self.catalogue.is_broken(to_load))):
            raise InferenceError(
                "explicit model load / unload is not allowed if polling is enabled, or in model control mode 'none': "
                "start the server with --model-control-mode=explicit. Only a model that has failed may be loaded again in every "
                "mode, without a configuration or files",
                ErrorCode.UNAVAILABLE,
            )
        if self._closed:
            raise _STOPPING.again()


_STOPPING = InferenceError("the server is stopping: it no longer loads or unloads models", ErrorCode.UNAVAILABLE)


class RepositoryStart:
    """The first loads of a server."""

    def __init__(self, catalogue: ModelCatalogue, changes: ModelChanges, scan: RepositoryScan, host: ModelHost) -> None:
        self._catalogue = catalogue
        self._changes = changes
        self._scan = scan
        self._host = host
        self._starts: dict[str, asyncio.Task[None]] = {}

    async def load(self, names: Iterable[str]) -> None:
        """Load models by their full names, and the parts of ensembles among them; failures are noted in the catalogue."""
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
            entry.reason = DUPLICATE_REASON
            return
        try:
            await self._changes.files.fetch(name, directory=self._scan.models.get(name))
            # Before taking the lock, so that the first model to load knows which others share its environment.
            reading = await read_model(model_directory(self._scan, name), self._host, namespace=entry.namespace)
            reading.note_environment(self._host)
            async with self._changes.locks.loading(name):
                candidates = await candidates_of(reading, self._host)
                if not reading.config.is_ensemble:
                    with suppress(ModelLoadError):  # the failed version has logged the reason; the others serve
                        await self._changes.change(entry, candidates)
                    return
            parts = self._catalogue.names.parts(part_names(reading.config), entry.namespace, self._scan.models)
            await self._start_parts(name, parts)
        except ModelLoadError as error:
            entry.reason = error.reason()
            log.error("failed to load '%s': %s", name, error.reason())  # noqa: TRY400  no bug of ours
            return
        with suppress(ModelLoadError):
            await self._changes.change(entry, candidates)

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
