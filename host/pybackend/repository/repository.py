"""The models that this server knows: finding them, loading them, unloading them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError, ServerError
from pybackend.instance.launcher import StubLauncher
from pybackend.instance.services import StubServices
from pybackend.model.door import Absence, ModelDoor
from pybackend.model.model import Model, ModelState, not_ready
from pybackend.modelconfig.ensemble import part_names
from pybackend.repository.candidate import Candidate, LoadOptions, ModelReading, read_model
from pybackend.repository.ensembles import Ensembles
from pybackend.repository.entry import ModelEntry, ModelStatus
from pybackend.repository.file_override import FileContents, OverrideDirectories, check_keys, remove_abandoned
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan, model_directory, scan_repositories
from pybackend.repository.life_cycle import ModelLifeCycle
from pybackend.repository.turns import Turns

log = logging.getLogger(__name__)


class ModelRepository:
    """All models by name."""

    def __init__(
        self,
        scan: RepositoryScan,
        launcher: StubLauncher,
        options: LoadOptions,
        services: StubServices,
        door: ModelDoor,
    ) -> None:
        self._scan = scan
        self._options = options
        self._entries: dict[str, ModelEntry] = {}
        self._directories = OverrideDirectories()
        self._life_cycle = ModelLifeCycle(launcher, services, door, self._directories, options.finalize_timeout_s)
        self._ensembles = Ensembles(self._entries)
        self._turns = Turns(options.model_load_count)
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._changes: set[asyncio.Task[None]] = set()
        self._closed = False

    # Start and end

    async def load_all(self) -> bool:
        """Load every model that is wanted at start; True if all of them are ready afterwards."""
        for warning in self._scan.warnings:
            log.warning("%s", warning)
        wanted = self._options.startup_models
        names = {*self._scan.models, *self._scan.duplicates} if wanted is None else set(wanted)
        for name in sorted(names):
            self._start(ModelEntry(name))
        try:
            await asyncio.gather(asyncio.to_thread(remove_abandoned), *self._starts.values())
            await asyncio.gather(*self._starts.values())  # with parts that nobody but ensembles has asked for
        finally:
            for start in self._starts.values():
                start.cancel()
            self._starts.clear()
        return all(entry.is_loaded for entry in self._entries.values())

    def _start(self, entry: ModelEntry) -> None:
        self._entries[entry.name] = entry
        self._starts[entry.name] = asyncio.create_task(self._load_at_start(entry))

    async def _load_at_start(self, entry: ModelEntry) -> None:
        if entry.name in self._scan.duplicates:
            entry.reason = DUPLICATE_REASON
            return
        try:
            # Before its turn: the first that is loaded can know who else will run in its environment.
            reading = await read_model(model_directory(self._scan, entry.name), self._options)
            async with self._turns.to_load(entry.name):
                candidates = reading.candidates(self._options)
                if not reading.config.is_ensemble:
                    with suppress(ModelLoadError):  # the version that failed has said why; the others serve
                        await self._life_cycle.load(entry, candidates)
                    return
            await self._start_parts(entry.name, part_names(reading.config))
        except ModelLoadError as error:
            entry.reason = error.reason()
            log.error("failed to load '%s': %s", entry.name, error.reason())  # noqa: TRY400  no bug of ours
            return
        with suppress(ModelLoadError):
            await self._life_cycle.load(entry, candidates)

    async def _start_parts(self, name: str, parts: Sequence[str]) -> None:
        """Wait for the parts of an ensemble; without a place among the loads, which they need."""
        await asyncio.to_thread(self._ensembles.check, name, parts, self._scan.models)
        for part in parts:
            if part not in self._starts and part in self._scan.models:
                self._start(ModelEntry(part, as_part=True))
        starts = [self._starts[part] for part in parts if part in self._starts]
        if starts:
            await asyncio.wait(starts)

    async def unload_all(self, deadline_s: float) -> bool:
        """Unload everything by a deadline of the loop's clock; True if nothing had to be cut short."""
        self._closed = True
        changes = list(self._changes)
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        in_time = await self._life_cycle.unload_all(deadline_s)
        self._directories.close()
        return in_time

    # Control while the server runs

    async def load_model(
        self, name: str, config_json: str | None = None, files: FileContents | None = None, *, asked_by: str = ""
    ) -> None:
        """Load a model, or bring a loaded one up to date; what has not changed since its last load is left alone.

        Goes on to its end when the caller stops waiting. Until the new versions are ready the old ones serve, and they
        go on serving if a new one fails.

        Args:
            name: the model.
            config_json: the configuration in place of config.pbtxt, until the next load.
            files: the model's whole directory in place of the repository's; see :data:`FileContents`. They must not
                change before this returns, and need a configuration.
            asked_by: the model that waits for this while it is being initialised, if there is one.

        Raises:
            InferenceError: UNAVAILABLE if models are not controlled by requests; INVALID_ARG or INTERNAL with the
                reason why it is not loaded.
        """
        self._check_control()
        _check_name(name)
        check_keys(files or {})
        await self._carry_out(self._load(name, config_json, files, asked_by))

    async def _load(
        self, name: str, config_json: str | None, files: FileContents | None, asked_by: str, *, as_part: bool = False
    ) -> None:
        tried: frozenset[str] = frozenset()
        while True:
            async with self._turns.to_load(name, asked_by):
                if as_part and not self._ensembles.lacking([name]):
                    return
                lacking = await self._load_in_turn(name, config_json, files, tried, as_part=as_part)
            if not lacking:
                return
            # Not within the turn: what parts do when they are loaded may concern this model.
            await asyncio.gather(*(self._load_part(part, asked_by) for part in sorted(lacking)))
            tried |= lacking

    async def _load_part(self, name: str, asked_by: str) -> None:
        try:
            await self._load(name, None, None, asked_by, as_part=True)
        except InferenceError as error:
            self._ensembles.note_failure(name, error.message.strip())

    async def _load_in_turn(
        self,
        name: str,
        config_json: str | None,
        files: FileContents | None,
        tried: frozenset[str],
        *,
        as_part: bool,
    ) -> frozenset[str]:
        """Load a model, or find out which parts it lacks for which that has not been ``tried`` yet."""
        try:
            directory = await asyncio.to_thread(self._place, name, config_json, files)
        except ModelLoadError as error:
            raise _poll_error(name, error) from error
        self._directories.hold(directory)
        try:
            reading = await self._read(name, directory, config_json)
            try:
                candidates = reading.candidates(self._options)
                parts = part_names(reading.config)
                if parts:
                    await asyncio.to_thread(self._check_parts, name, parts)
            except ModelLoadError as error:
                raise InferenceError(f"load failed for model '{name}': {error.message}\n", error.code) from error
            lacking = self._ensembles.lacking(parts) - tried
            if not lacking:
                await self._replace(name, candidates, as_part=as_part)
            return lacking
        finally:
            await self._directories.let_go(directory)

    def _check_parts(self, name: str, parts: Sequence[str]) -> None:
        try:
            directories = scan_repositories(self._scan.repositories).models
        except ServerError as error:
            raise ModelLoadError(str(error)) from error
        self._ensembles.check(name, parts, directories)

    def _place(self, name: str, config_json: str | None, files: FileContents | None) -> Path:
        """The directory to load a model from. Blocking."""
        if not files:
            try:
                return model_directory(scan_repositories(self._scan.repositories), name)
            except ServerError as error:
                raise ModelLoadError(str(error)) from error
        if config_json is None:
            raise ModelLoadError("files are given without a configuration, which they need: give 'config' too")
        return self._directories.make(name, files)

    async def _read(self, name: str, directory: Path, config_json: str | None) -> ModelReading:
        try:
            return await read_model(directory, self._options, config_json)
        except ModelLoadError as error:
            raise _poll_error(name, error) from error

    async def _replace(self, name: str, candidates: Mapping[int, Candidate], *, as_part: bool) -> None:
        entry = self._entries.setdefault(name, ModelEntry(name, as_part=as_part))
        entry.as_part = as_part
        try:
            await self._life_cycle.load(entry, candidates)
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error
        finally:
            self._ensembles.on_change(name)

    async def unload_model(self, name: str, *, unload_dependents: bool = False, asked_by: str = "") -> None:
        """Begin to unload a model: it takes no more requests, those that it has are answered. Unknown ones are fine.

        Args:
            name: the model.
            unload_dependents: as well those that were loaded only as its parts and are nobody else's.
            asked_by: as for :meth:`load_model`.

        Raises:
            InferenceError: UNAVAILABLE if models are not controlled by requests.
        """
        self._check_control()
        await self._carry_out(self._begin_unload(name, asked_by, unload_dependents=unload_dependents))

    async def _begin_unload(
        self, name: str, asked_by: str, *, unload_dependents: bool, only_if_mere_part: bool = False
    ) -> None:
        async with self._turns.to_change(name, asked_by):
            if only_if_mere_part and not self._ensembles.is_mere_part(name):
                return
            parts = self._ensembles.parts(name)
            self._retire(name)
        if unload_dependents:
            for part in sorted(parts):
                await self._begin_unload(part, asked_by, unload_dependents=True, only_if_mere_part=True)

    async def unload(self, name: str, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Unload a model and wait for its end; True if nothing had to be cut short."""
        async with self._turns.to_change(name):
            ends = self._retire(name, drain_timeout_s, finalize_timeout_s)
        return all(await asyncio.gather(*map(asyncio.shield, ends)))

    def _retire(
        self, name: str, drain_timeout_s: float | None = None, finalize_timeout_s: float | None = None
    ) -> list[asyncio.Task[bool]]:
        entry = self._entries.get(name)
        if entry is None:
            return []
        ends = self._life_cycle.retire_all(entry, drain_timeout_s, finalize_timeout_s)
        # A failure that nobody wants to know of any more must not keep the server from being ready.
        entry.forget_failures()
        if not entry.versions:
            del self._entries[name]
        self._ensembles.on_change(name)
        return ends

    async def _carry_out(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _STOPPING.again() from None
            raise

    def _check_control(self) -> None:
        if not self._options.explicit:
            raise InferenceError(
                "explicit model load / unload is not allowed if polling is enabled, or in model control mode 'none': "
                "start the server with --model-control-mode=explicit",
                ErrorCode.UNAVAILABLE,
            )
        if self._closed:
            raise _STOPPING.again()

    # Look-up

    def find(self, name: str, version: str = "") -> Model:
        """The version that answers a request.

        Args:
            name: the model's name.
            version: decimal, or ``""`` for the highest that is ready.

        Raises:
            InferenceError: there is no such model, no such version, or it does not serve now.
        """
        entry = self._entry(name)
        if not version:
            for model in entry.newest_first:
                if model.state is ModelState.READY:
                    return model
            for model in entry.newest_first:
                if model.failure is not None:
                    raise model.failure.again()
            raise InferenceError(
                f"Request for unknown model: '{name}' has no available versions{entry.why_not_available()}",
                ErrorCode.NOT_FOUND,
            )
        found = entry.versions.get(int(version))
        if found is None:
            raise InferenceError(
                f"Request for unknown model: '{name}' version {version} is not found", ErrorCode.NOT_FOUND
            )
        if found.state is not ModelState.READY:
            if found.failure is not None:
                raise found.failure.again()
            raise not_ready(name, version)
        return found

    def absence(self, name: str) -> Absence:
        """Why no version of a model serves."""
        return self._ensembles.absence(name)

    def known_versions(self, name: str, version: str = "") -> list[Model]:
        """A model's version, whatever its state; all of them for ``""``, none if there is no such version.

        Raises:
            InferenceError: INVALID_ARG, there is no such model or that is no version.
        """
        number = _version_number(version) if version else None
        versions = self._entry(name).versions
        return [model for known, model in versions.items() if number in {None, known}]

    def _entry(self, name: str) -> ModelEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise InferenceError(f"Request for unknown model: '{name}' is not found", ErrorCode.INVALID_ARG)
        return entry

    def ready_versions(self, name: str) -> list[Model]:
        """Versions of a model that take requests, ascending; none if there is no such model."""
        entry = self._entries.get(name)
        return [] if entry is None else entry.ready_versions()

    def models(self) -> Iterator[Model]:
        """Every version that is known, sorted by name and number."""
        for _, entry in sorted(self._entries.items()):
            yield from entry.versions.values()

    @property
    def all_ready(self) -> bool:
        """True if every known model serves, or was unloaded on purpose."""
        return all(entry.is_ready for entry in self._entries.values())

    def table(self) -> list[ModelStatus]:
        """What became of every model, for the terminal."""
        return [row for _, entry in sorted(self._entries.items()) for row in entry.table()]

    def trim(self) -> None:
        """Give idle memory of all models back; called about once a second."""
        self._life_cycle.trim()


_STOPPING = InferenceError("the server is stopping: no model is loaded or unloaded any more", ErrorCode.UNAVAILABLE)


def _check_name(name: str) -> None:
    trimmed = name.strip()
    if not trimmed:
        raise InferenceError("Model name cannot be empty. Please enter a valid name to deploy.", ErrorCode.INVALID_ARG)
    if trimmed in {".", ".."} or "/" in name:
        raise InferenceError(
            f"invalid model name '{name}', model name must not contain path traversal characters", ErrorCode.INVALID_ARG
        )


def _version_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise InferenceError(
            f"failed to get model version from specified version string '{text}' (it is no number), version should be "
            "an integral value > 0",
            ErrorCode.INVALID_ARG,
        ) from None
    if number < 0:
        raise InferenceError(
            f"invalid model version specified '{text}' , version should be an integral value > 0", ErrorCode.INVALID_ARG
        )
    return number


def _poll_error(name: str, error: ModelLoadError) -> InferenceError:
    message = f"failed to load '{name}', failed to poll from model repository: {error.message}"
    log.error("%s", message.encode("utf-8", "backslashreplace").decode())  # models may ask for any name
    return InferenceError(message)
