"""The models of this server: finds, loads and unloads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.author_files.apart import apart
from pybackend.errors import (
    ErrorCode,
    InferenceError,
    ModelLoadError,
    NotServingError,
    ServerError,
    UnknownModelError,
)
from pybackend.model.door import Absence
from pybackend.model.host import ModelHost
from pybackend.model.model import Model, ModelState, not_ready
from pybackend.modelconfig.ensemble import part_names
from pybackend.repository.bounds import Bounds
from pybackend.repository.candidate import Candidate, ModelReading, candidates_of, read_model
from pybackend.repository.ensembles import Ensembles
from pybackend.repository.entry import ModelEntry, ModelStatus
from pybackend.repository.file_override import FileContents, OverrideDirectories, check_keys
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan, model_directory, scan_repositories
from pybackend.repository.life_cycle import ModelLifeCycle
from pybackend.repository.model_locks import ModelLocks
from pybackend.repository.stop_report import Unfinished
from pybackend.sandbox.grant import Grant
from pybackend.sandbox.private_room import PrivateRoom

log = logging.getLogger(__name__)

LONGEST_VERSION_DIGITS = 19
"""Versions are signed 64-bit numbers; longer text is invalid, and ``int`` raises on more than 4,300 digits."""


@dataclass(frozen=True)
class _Brought:
    """The configuration and files that came with a load request, and the requesting model's rights."""

    config_json: str | None = None
    files: FileContents = field(default_factory=dict)
    grant: Grant | None = None


class ModelRepository:
    """All models by name.

    Args:
        scan: the model directories.
        host: the server.

    Attributes:
        host: the server's shared services.
    """

    def __init__(self, scan: RepositoryScan, host: ModelHost) -> None:
        self._scan = scan
        self.host = host
        self._entries: dict[str, ModelEntry] = {}
        self._directories = OverrideDirectories(PrivateRoom(host.room_places))
        self._life_cycle = ModelLifeCycle(host, self._directories)
        self._ensembles = Ensembles(self._entries)
        self._bounds = Bounds(host)
        self._locks = ModelLocks(host.model_load_count)
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._changes: set[asyncio.Task[None]] = set()
        self._closed = False

    # Start and stop

    async def load_all(self) -> bool:
        """Load every model selected for the start; True if all of them are ready afterwards."""
        for warning in self._scan.warnings:
            log.warning("%s", warning)
        wanted = self.host.startup_models
        names = {*self._scan.models, *self._scan.duplicates} if wanted is None else set(wanted)
        for name in sorted(names):
            self._start(ModelEntry(name))
        try:
            await asyncio.gather(asyncio.to_thread(self._directories.remove_abandoned), *self._starts.values())
            await asyncio.gather(*self._starts.values())  # includes parts that only ensembles need
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
            # Before taking the lock, so that the first model to load knows which others share its environment.
            reading = await read_model(model_directory(self._scan, entry.name), self.host)
            reading.note_environment(self.host)
            async with self._locks.loading(entry.name):
                candidates = await candidates_of(reading, self.host)
                if not reading.config.is_ensemble:
                    with suppress(ModelLoadError):  # the failed version has logged the reason; the others serve
                        await self._change(entry, candidates)
                    return
            await self._start_parts(entry.name, part_names(reading.config))
        except ModelLoadError as error:
            entry.reason = error.reason()
            log.error("failed to load '%s': %s", entry.name, error.reason())  # noqa: TRY400  no bug of ours
            return
        with suppress(ModelLoadError):
            await self._change(entry, candidates)

    async def _start_parts(self, name: str, parts: Sequence[str]) -> None:
        """Wait for an ensemble's parts, without holding a place among the loads, because the parts need those."""
        await apart(f"the parts of ensemble '{name}'", self._ensembles.check, name, parts, self._scan.models)
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

    def unfinished(self) -> list[Unfinished]:
        """The versions that :meth:`unload_all` waits for."""
        return self._life_cycle.unfinished()

    # Model control at run time

    async def load_model(
        self,
        name: str,
        config_json: str | None = None,
        files: FileContents | None = None,
        *,
        asked_by: str = "",
        grant: Grant | None = None,
    ) -> None:
        """Load a model, or update a loaded one; versions that have not changed since their last load stay as they are.

        The load continues even if the caller stops waiting. Old versions serve until the new ones are ready, and keep
        serving if a new one fails.

        Args:
            name: the model's name.
            config_json: the configuration to use instead of config.pbtxt, until the next load.
            files: the complete model directory to use instead of the repository's; see :data:`FileContents`. They must
                not change before this returns, and require ``config_json``.
            asked_by: the model that waits for this while it is being initialised, if any.
            grant: the rights of the confined model that requests this, None if the requester is not confined.

        Raises:
            InferenceError: UNAVAILABLE if model control is disabled, or not permitted to this model; INVALID_ARG or
                INTERNAL if loading failed, with the reason.
        """
        self._check_control()
        _check_name(name)
        check_keys(files or {})
        if grant is not None:
            grant.check_control(name)
            if config_json is not None or files:
                grant.check_override(name)
        await self._carry_out(self._load(name, _Brought(config_json, files or {}, grant), asked_by))

    async def _load(self, name: str, brought: _Brought, asked_by: str, *, as_part: bool = False) -> None:
        tried: frozenset[str] = frozenset()
        while True:
            async with self._locks.loading(name, asked_by):
                if as_part and not self._ensembles.lacking([name]):
                    return
                lacking = await self._load_locked(name, brought, tried, as_part=as_part)
            if not lacking:
                return
            # Without the lock: loading parts may require changes to this model.
            await asyncio.gather(*(self._load_part(part, brought.grant, asked_by) for part in sorted(lacking)))
            tried |= lacking

    async def _load_part(self, name: str, grant: Grant | None, asked_by: str) -> None:
        try:
            await self._load(name, _Brought(grant=grant), asked_by, as_part=True)
        except InferenceError as error:
            self._ensembles.note_failure(name, error.message.strip())

    async def _load_locked(
        self, name: str, brought: _Brought, tried: frozenset[str], *, as_part: bool
    ) -> frozenset[str]:
        """Load a model, or return its missing parts that have not been ``tried`` yet."""
        try:
            directory = await self._place(name, brought)
        except ModelLoadError as error:
            raise _poll_error(name, error) from error
        self._directories.hold(directory)
        try:
            reading = await self._read(name, directory, brought)
            try:
                bounds = await self._bounds_of(reading, brought)
                candidates = await candidates_of(reading, self.host, bounds)
                parts = part_names(reading.config)
                if parts:
                    await apart(f"the parts of ensemble '{name}'", self._check_parts, name, parts)
            except ModelLoadError as error:
                raise InferenceError(f"load failed for model '{name}': {error.message}\n", error.code) from error
            lacking = self._ensembles.lacking(parts) - tried
            for bound in bounds:
                for part in sorted(lacking):
                    bound.check_control(part)
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

    async def _bounds_of(self, reading: ModelReading, brought: _Brought) -> tuple[Grant, ...]:
        brings = brought.config_json is not None
        what = f"the configuration of model '{reading.config.name}'"
        bounds = await apart(what, self._bounds.of_load, brought.grant, reading, brings=brings)
        reading.note_environment(self.host)
        return bounds

    async def _place(self, name: str, brought: _Brought) -> Path:
        """The directory from which to load a model."""
        if not brought.files:
            try:
                scan = await apart("the repositories", scan_repositories, self._scan.repositories)
            except ServerError as error:
                raise ModelLoadError(str(error)) from error
            return model_directory(scan, name)
        if brought.config_json is None:
            raise ModelLoadError("files are given without a configuration, which they need: give 'config' too")
        return await asyncio.to_thread(self._directories.make, name, brought.files)

    async def _read(self, name: str, directory: Path, brought: _Brought) -> ModelReading:
        try:
            return await read_model(directory, self.host, brought.config_json, is_brought=bool(brought.files))
        except ModelLoadError as error:
            raise _poll_error(name, error) from error

    async def _replace(self, name: str, candidates: Mapping[int, Candidate], *, as_part: bool) -> None:
        entry = self._entries.setdefault(name, ModelEntry(name, as_part=as_part))
        entry.as_part = as_part
        try:
            await self._change(entry, candidates)
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error
        finally:
            self._ensembles.on_change(name)

    async def _change(self, entry: ModelEntry, candidates: Mapping[int, Candidate]) -> None:
        try:
            await self._life_cycle.load(entry, candidates)
        finally:
            bounded = any(candidate.source.bounds for candidate in candidates.values())
            self._bounds.note(entry.name, entry.versions.values(), is_repositorys=not bounded)

    async def unload_model(
        self, name: str, *, unload_dependents: bool = False, asked_by: str = "", grant: Grant | None = None
    ) -> None:
        """Begin to unload a model: it accepts no more requests and answers those it has. Unknown names are ignored.

        Args:
            name: the model's name.
            unload_dependents: also unload parts that were loaded only for this ensemble and are not otherwise needed.
            asked_by: as for :meth:`load_model`.
            grant: as for :meth:`load_model`.

        Raises:
            InferenceError: UNAVAILABLE if model control is disabled, or not permitted to this model.
        """
        self._check_control()
        if grant is not None:
            grant.check_control(name)
        await self._carry_out(self._begin_unload(name, asked_by, unload_dependents=unload_dependents))

    async def _begin_unload(
        self, name: str, asked_by: str, *, unload_dependents: bool, only_if_mere_part: bool = False
    ) -> None:
        async with self._locks.changing(name, asked_by):
            if only_if_mere_part and not self._ensembles.is_mere_part(name):
                return
            parts = self._ensembles.parts(name)
            self._retire(name)
        if unload_dependents:
            for part in sorted(parts):
                await self._begin_unload(part, asked_by, unload_dependents=True, only_if_mere_part=True)

    async def unload(self, name: str, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Unload a model and wait for its end; True if nothing had to be cut short."""
        async with self._locks.changing(name):
            ends = self._retire(name, drain_timeout_s, finalize_timeout_s)
        return all(await asyncio.gather(*map(asyncio.shield, ends)))

    def _retire(
        self, name: str, drain_timeout_s: float | None = None, finalize_timeout_s: float | None = None
    ) -> list[asyncio.Task[bool]]:
        entry = self._entries.get(name)
        if entry is None:
            return []
        ends = self._life_cycle.retire_all(entry, drain_timeout_s, finalize_timeout_s)
        # Failures of an unloaded model must not keep the server from being ready.
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
        if not self.host.explicit:
            raise InferenceError(
                "explicit model load / unload is not allowed if polling is enabled, or in model control mode 'none': "
                "start the server with --model-control-mode=explicit",
                ErrorCode.UNAVAILABLE,
            )
        if self._closed:
            raise _STOPPING.again()

    # Lookup

    def find(self, name: str, version: str = "") -> Model:
        """The version that answers a request.

        Args:
            name: the model's name.
            version: decimal, or ``""`` for the highest ready version.

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
                    raise _not_serving(model.failure)
            raise NotServingError(
                f"Request for unknown model: '{name}' has no available versions{entry.why_not_available()}",
                ErrorCode.NOT_FOUND,
            )
        found = entry.versions.get(_version_number(version))
        if found is None:
            raise UnknownModelError(
                f"Request for unknown model: '{name}' version {version} is not found", ErrorCode.NOT_FOUND
            )
        if found.state is not ModelState.READY:
            if found.failure is not None:
                raise _not_serving(found.failure)
            raise not_ready(name, version)
        return found

    def absence(self, name: str) -> Absence:
        """The reason why no version of a model serves."""
        return self._ensembles.absence(name)

    def known_versions(self, name: str, version: str = "") -> list[Model]:
        """A model's version in any state; all versions for ``""``; empty if there is no such version.

        Raises:
            InferenceError: INVALID_ARG, there is no such model, or the version is not a valid number.
        """
        number = _version_number(version) if version else None
        versions = self._entry(name).versions
        return [model for known, model in versions.items() if number in {None, known}]

    def knows(self, name: str) -> bool:
        """True if there is a model of this name, serving or not."""
        return name in self._entries

    def _entry(self, name: str) -> ModelEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownModelError(f"Request for unknown model: '{name}' is not found", ErrorCode.INVALID_ARG)
        return entry

    def ready_versions(self, name: str) -> list[Model]:
        """Versions of a model that accept requests, ascending; empty if there is no such model."""
        entry = self._entries.get(name)
        return [] if entry is None else entry.ready_versions()

    def models(self) -> Iterator[Model]:
        """Every known version, sorted by name and number."""
        for _, entry in sorted(self._entries.items()):
            yield from entry.versions.values()

    @property
    def all_ready(self) -> bool:
        """True if every known model serves, or was deliberately unloaded."""
        return all(entry.is_ready for entry in self._entries.values())

    def table(self) -> list[ModelStatus]:
        """The state of every model, for the terminal."""
        return [row for _, entry in sorted(self._entries.items()) for row in entry.table()]

    def trim(self) -> None:
        """Release idle memory of all models; called about once a second."""
        self._life_cycle.trim()


_STOPPING = InferenceError("the server is stopping: it no longer loads or unloads models", ErrorCode.UNAVAILABLE)


def _not_serving(failure: InferenceError) -> NotServingError:
    return NotServingError(failure.message, failure.code)


def _check_name(name: str) -> None:
    trimmed = name.strip()
    if not trimmed:
        raise InferenceError("Model name cannot be empty. Please enter a valid name to deploy.", ErrorCode.INVALID_ARG)
    if trimmed in {".", ".."} or "/" in name:
        raise InferenceError(
            f"invalid model name '{name}', model name must not contain path traversal characters", ErrorCode.INVALID_ARG
        )


def _version_number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InferenceError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be "
            "an integral value > 0",
            ErrorCode.INVALID_ARG,
        )
    number = int(text[: LONGEST_VERSION_DIGITS + 2])  # longer numbers name no version either way
    if number < 0:
        raise InferenceError(
            f"invalid model version specified '{text}' , version should be an integral value > 0", ErrorCode.INVALID_ARG
        )
    return number


def _poll_error(name: str, error: ModelLoadError) -> InferenceError:
    message = f"failed to load '{name}', failed to poll from model repository: {error.message}"
    log.error("%s", message.encode("utf-8", "backslashreplace").decode())  # models may request any name
    return InferenceError(message)
