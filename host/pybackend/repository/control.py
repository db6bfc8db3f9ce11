"""Model control at run time: clients and models load, unload and list models, and change their traffic."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.modelconfig.traffic import TrafficChange, TrafficReport
from pybackend.repository.catalogue import ModelCatalogue
from pybackend.repository.changes import LoadRequest, ModelChanges, check_name
from pybackend.repository.entry import ModelStatus, change_traffic, report_traffic
from pybackend.repository.file_override import FileContents, check_keys
from pybackend.repository.layout import RepositoryScan
from pybackend.repository.model_files import RepositoryFiles
from pybackend.repository.names import only
from pybackend.repository.remote import moment
from pybackend.sandbox.grant import Grant

log = logging.getLogger(__name__)

MOST_BROUGHT_BYTES = 1024 * 1024 * 1024
"""Limit on the files in memory that all open load requests bring. One request alone may bring more."""

MOST_CONFIG_CHARACTERS = 1024 * 1024
"""Limit of a configuration that comes with a load; large ones have some kilobytes."""

_STARTING = InferenceError(
    "the server is still starting: models can be loaded and unloaded once the start has finished, so not from the "
    "'initialize' of models that it loads at start",
    ErrorCode.UNAVAILABLE,
)
_STOPPING = InferenceError("the server is stopping: it no longer loads or unloads models", ErrorCode.UNAVAILABLE)


class ModelControl:
    """Changes the models of one server on request."""

    def __init__(self, catalogue: ModelCatalogue, files: RepositoryFiles, *, is_explicit: bool) -> None:
        self._catalogue = catalogue
        self._files = files
        self._is_explicit = is_explicit
        self._changes: ModelChanges | InferenceError = _STARTING  # or the reason for refusing all of them
        self._running: set[asyncio.Task[None]] = set()
        self._brought_bytes = 0
        self._doubt = ""

    def open(self, changes: ModelChanges) -> None:
        """Accept changes from now on: the models of the start are loaded."""
        self._changes = changes

    async def close(self) -> None:
        """End the running changes, and refuse all others."""
        self._changes = _STOPPING
        running = list(self._running)
        for change in running:
            change.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def check(self, to_load: str = "") -> None:
        """Check that models may be loaded and unloaded now.

        Raises InferenceError: UNAVAILABLE, the control mode forbids it, or the server starts or stops. A model
        ``to_load`` as it is in its repository may be loaded in every control mode if it has failed.
        """
        self._permitted(to_load)

    def _permitted(self, to_load: str = "") -> ModelChanges:
        """Carries changes out; otherwise as :meth:`check`."""
        if self._changes is _STARTING:
            raise _STARTING.again()
        if not (self._is_explicit or (to_load and self._catalogue.is_broken(to_load))):
            raise InferenceError(
                "explicit model load / unload is not allowed if polling is enabled, or in model control mode 'none': "
                "start the server with --model-control-mode=explicit. Only a model that has failed may be loaded again in every "
                "mode, without a configuration or files",
                ErrorCode.UNAVAILABLE,
            )
        return self._open_changes()

    def _open_changes(self) -> ModelChanges:
        if isinstance(self._changes, InferenceError):
            raise self._changes.again()
        return self._changes

    async def load(
        self,
        name: str,
        config_json: str | None = None,
        files: FileContents | None = None,
        *,
        asked_by: str = "",
        grant: Grant | None = None,
        of_client: bool = False,
        home: str = "",
    ) -> None:
        """Load a model, or update a loaded one, and so all models of a name that several have.

        Versions that have not changed since their last load stay as they are.

        The load continues even if the caller stops waiting. Old versions serve until the new ones are ready, and keep
        serving if a new one fails. See :class:`LoadRequest`; its files must not change before this returns.

        Raises InferenceError: UNAVAILABLE if model control is disabled, or not permitted to this model; INVALID_ARG or
        INTERNAL if loading failed, with the reason. ``asked_by`` waits for this while it is being initialised; ``home``
        is its namespace, ``""`` for a client.
        """
        if config_json is not None and len(config_json) > MOST_CONFIG_CHARACTERS:
            raise InferenceError(
                f"the configuration for model '{name}' has {len(config_json)} characters, and {MOST_CONFIG_CHARACTERS} are "
                "the most that a load takes",
                ErrorCode.INVALID_ARG,
            )
        request = LoadRequest(config_json, files or {}, grant, of_client)
        changes = self._permitted(name if request.is_retry else "")
        names = [name]
        if self._catalogue.names.namespaces is not None:
            names = self._catalogue.names.to_load(name, home, (await self._look()).models)
        if not request.reads_repository:
            only(name, names)
        for each in names:
            check_name(self._catalogue.names.split(each)[1])
            if grant is not None:
                grant.check_control(each)
        check_keys(request.files)
        if grant is not None and not request.reads_repository:
            models = (await self._look()).models
            await asyncio.to_thread(grant.check_override, names[0], models.get(grant.model), models.get(names[0]))
        self._brought_bytes += request.nbytes
        try:
            if request.nbytes < self._brought_bytes > MOST_BROUGHT_BYTES:
                raise InferenceError(
                    f"other load requests bring {self._brought_bytes - request.nbytes} bytes of files now, and "
                    f"{request.nbytes} more would exceed the limit of {MOST_BROUGHT_BYTES}: try again when they have ended",
                    ErrorCode.UNAVAILABLE,
                )
            await self._carry_out_all([changes.load(each, request, asked_by) for each in names])
        finally:
            self._brought_bytes -= request.nbytes

    async def load_of_operator(self, name: str) -> None:
        """Load a model as it is in its repository, in every control mode: the operator's own program asks.

        Raises InferenceError: loading failed, with the reason, or the server stops.
        """
        changes = self._open_changes()
        check_name(name)
        await self._carry_out(changes.load(name, LoadRequest(None, {}, None, of_client=False), ""))

    async def unload(
        self,
        name: str,
        *,
        unload_dependents: bool = False,
        asked_by: str = "",
        grant: Grant | None = None,
        home: str = "",
    ) -> None:
        """Begin to unload all models of a name: they accept no more requests and answer those they have.

        Unknown names are ignored.

        Raises InferenceError: UNAVAILABLE if model control is disabled, or not permitted to this model. With
        ``unload_dependents``, parts that were loaded only for this ensemble go too. The other arguments are those of
        :meth:`load`.
        """
        changes = self._permitted()
        names = self._catalogue.names.to_unload(name, home)
        if grant is not None:
            for each in names:
                grant.check_control(each)
        begin = partial(changes.begin_unload, asked_by=asked_by, unload_dependents=unload_dependents)
        await self._carry_out_all([begin(each) for each in names])

    def traffic(self, name: str) -> TrafficReport:
        """The rules for requests to a model that name no version."""
        return report_traffic(self._catalogue.entry(name))

    async def change_traffic(self, name: str, change: TrafficChange) -> TrafficReport:
        """Change these rules.

        Raises InferenceError: UNAVAILABLE, model control is disabled; INVALID_ARG, there is no such model, or it cannot
        have these rules.
        """
        changes = self._permitted()
        name = self._catalogue.names.known(name)
        async with changes.locks.changing(name):
            return change_traffic(self._catalogue.entry(name), change)

    async def read_index(self, *, only_ready: bool = False) -> list[ModelStatus]:
        """The repository index: the known models, and those that the repositories hold now.

        A repository that does not answer is shown as it was when it last did: the reasons of its other models say so.
        """
        (scan, doubt), _ = await asyncio.gather(self._files.look_briefly(), self._catalogue.ask_models())
        if doubt and doubt != self._doubt:
            log.warning("the repository index may be out of date: %s", doubt)
        self._doubt = doubt
        listings = self._files.remote.listings
        doubts = {
            place: f"as listed at {moment(listing.listed_s)}: {listing.doubt}"
            for place, listing in listings.items()
            if listing.doubt
        }
        places = {name: directory.parent for name, directory in scan.models.items()} if doubts or doubt else {}
        rows = [
            row
            if row.state or row.full_name not in places
            else replace(
                row, reason=doubts.get(places[row.full_name], "" if places[row.full_name] in listings else doubt)
            )
            for row in self._catalogue.index(scan.models, scan.duplicates)
        ]
        return [row for row in rows if row.is_ready or not only_ready]

    async def configuration_file(self, name: str) -> tuple[Path, str | None]:
        """The configuration file of a model and its text, None if there is no such file.

        See :meth:`RepositoryFiles.configuration`.

        Raises InferenceError: there is no such model, or its file cannot be read.
        """
        try:
            return await self._files.configuration(name)
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error

    async def _look(self) -> RepositoryScan:
        try:
            return await self._files.look()
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error

    async def _carry_out_all(self, changes: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Carry out changes of several models; if some fail, the others are carried out nevertheless."""
        outcomes = await asyncio.gather(*map(self._carry_out, changes), return_exceptions=True)
        failed = [outcome for outcome in outcomes if outcome is not None]
        refusals = [each for each in failed if isinstance(each, InferenceError)]
        if len(failed) > 1 and len(failed) == len(refusals):
            raise InferenceError("; ".join(each.message.strip() for each in refusals), refusals[0].code)
        if failed:
            raise failed[0]

    async def _carry_out(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _STOPPING.again() from None
            raise
