"""Loads and unloads one model at a time per name: from the repositories, or from what came with the request."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.apart import apart
from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.model.host import ModelHost, NotLoaded
from pybackend.model.source import ModelSource
from pybackend.modelconfig.ensemble import circle_of, part_names
from pybackend.observability.log_lines import about_model
from pybackend.repository.bounds import Bounds
from pybackend.repository.catalogue import ModelCatalogue
from pybackend.repository.entry import ModelEntry
from pybackend.repository.file_override import FileContents, OverrideDirectories
from pybackend.repository.layout import model_directory
from pybackend.repository.life_cycle import MakeModel, ModelLifeCycle, VersionsFailedError
from pybackend.repository.model_files import RepositoryFiles
from pybackend.repository.reading import read_model, served_versions
from pybackend.sandbox.grant import Grant

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadRequest:
    """The contents of a load request, and the rights of its sender."""

    config_json: str | None = None  # the configuration to use instead of config.pbtxt, None for config.pbtxt
    # the files to use instead of the model's directory, empty for the directory
    files: FileContents = field(default_factory=dict)
    # the rights of the confined model that requests the load; None for the operator and for clients
    grant: Grant | None = None
    of_client: bool = False  # True if a client sent it
    directory: Path | None = None  # where the model was seen; None to ask all repositories for it

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.files.values()))

    @property
    def is_retry(self) -> bool:
        """True if a client only wants the model as it is in its repository."""
        return self.of_client and self.reads_repository

    @property
    def reads_repository(self) -> bool:
        """True if nothing came with the request: the model is loaded as it is on disk."""
        return self.config_json is None and not self.files


class ModelChanges:
    """Changes the models of a catalogue."""

    def __init__(
        self,
        catalogue: ModelCatalogue,
        host: ModelHost,
        directories: OverrideDirectories,
        files: RepositoryFiles,
        life_cycle: ModelLifeCycle,
        make: MakeModel,
    ) -> None:
        self._catalogue = catalogue
        self._host = host
        self._directories = directories
        self._bounds = Bounds(host)
        self.files = files
        self._life_cycle = life_cycle
        self._make = make
        self.locks = ModelLocks(host.settings.load_count)  # serialise the changes of each model

    # Loading

    async def load(self, name: str, request: LoadRequest, asked_by: str = "", *, as_part: bool = False) -> None:
        """Load a model, or bring it up to date, and load the parts that it lacks if it is an ensemble.

        ``asked_by`` is a model that waits for this while it is being initialised. A part of an ensemble is loaded only
        if no version serves.
        """
        tried: frozenset[str] = frozenset()
        while True:
            async with self.locks.loading(name, asked_by):
                if as_part and not self._catalogue.ensembles.lacking([name]):
                    return
                lacking = await self._load_locked(name, request, tried, as_part=as_part)
            if not lacking:
                return
            # Without the lock: loading parts may require changes to this model.
            await asyncio.gather(*(self._load_part(part, request.grant, asked_by) for part in sorted(lacking)))
            tried |= lacking

    async def _load_part(self, name: str, grant: Grant | None, asked_by: str) -> None:
        with suppress(InferenceError):  # it is noted, and the ensemble says so
            await self.load(name, LoadRequest(grant=grant), asked_by, as_part=True)

    async def _load_locked(
        self, name: str, request: LoadRequest, tried: frozenset[str], *, as_part: bool
    ) -> frozenset[str]:
        """Load a model, or return its missing parts that have not been ``tried`` yet."""
        try:
            directory = await self._place(name, request)
        except ModelLoadError as error:
            is_known = name in self._catalogue.entries
            if as_part or is_known:  # names in requests are not bounded
                self._note_failure(name, request, error, known=is_known)
            raise _poll_error(name, error) from error
        self._directories.hold(directory)
        try:
            source = await self._read(name, directory, request)
            try:
                source, bounds = await self._bounded(source, request)
                versions = await served_versions(source, self._host, bounds)
                parts = part_names(source.config)
                if parts:
                    parts = await self._check_parts(name, parts)
            except ModelLoadError as error:
                about = about_model(name, "")
                log.error("failed to load '%s': %s", name, error.reason(), extra=about)  # noqa: TRY400  no bug of ours
                raise InferenceError(f"load failed for model '{name}': {error.message}\n", error.code) from error
            lacking = self._catalogue.ensembles.lacking(parts) - tried
            for bound in bounds:
                for part in sorted(lacking):
                    bound.check_control(part)
            if not lacking:
                await self._replace(name, versions, as_part=as_part)
            return lacking
        except InferenceError as error:
            self._note_failure(name, request, error.__cause__)
            raise
        finally:
            await self._directories.let_go(directory)

    def _note_failure(
        self, name: str, request: LoadRequest, error: BaseException | None, *, known: bool = True
    ) -> None:
        """Note why the model of the repositories is not loaded, if no version can say it."""
        entry = self._catalogue.entries.get(name)
        serves = entry is not None and bool(entry.ready_versions())
        is_note = request.reads_repository if serves else not request.files
        if not is_note or not isinstance(error, ModelLoadError):
            return
        if serves:
            reason = error.why if isinstance(error, VersionsFailedError) else error.message
            self._catalogue.note_failure(name, NotLoaded(reason))
        elif not isinstance(error, VersionsFailedError):
            self._catalogue.note_failure(name, NotLoaded(error.reason(), known))

    async def _check_parts(self, name: str, named: Sequence[str]) -> tuple[str, ...]:
        """The full names of an ensemble's parts, after a check that it does not contain itself."""
        directories = (await self.files.scan()).models
        parts = self._catalogue.names.parts(named, self._catalogue.names.split(name)[0], directories)
        await self.files.fetch_configurations(parts, directories)
        await apart(f"the parts of ensemble '{name}'", self._catalogue.ensembles.check, name, parts, directories)
        return parts

    async def _bounded(self, source: ModelSource, request: LoadRequest) -> tuple[ModelSource, tuple[Grant, ...]]:
        brings = request.config_json is not None
        what = f"the configuration of model '{source.full_name}'"
        if request.of_client and brings:
            source = await apart(what, self._bounds.of_client, source)
        bounds = await apart(what, self._bounds.of_load, request.grant, source, brings=brings)
        self._host.environments.uses.note(source.directory, source.environment_path)
        return source, bounds

    async def _place(self, name: str, request: LoadRequest) -> Path:
        if not request.files:
            await self.files.fetch(name, request.config_json, request.directory)
            return model_directory(await self.files.scan(), name)
        if request.config_json is None:
            raise ModelLoadError("files are given without a configuration, which they need: give 'config' too")
        _, plain = self._catalogue.names.split(name)
        return await asyncio.to_thread(self._directories.make, plain, request.files)

    async def _read(self, name: str, directory: Path, request: LoadRequest) -> ModelSource:
        try:
            namespace, _ = self._catalogue.names.split(name)
            is_brought = bool(request.files)
            return await read_model(
                directory, self._host, request.config_json, is_brought=is_brought, namespace=namespace
            )
        except ModelLoadError as error:
            raise _poll_error(name, error) from error

    async def _replace(self, name: str, versions: Mapping[int, ModelSource], *, as_part: bool) -> None:
        entry = self._catalogue.entries.get(name) or self._catalogue.new_entry(name)
        entry.as_part = as_part
        try:
            await self.change(entry, versions)
        except ModelLoadError as error:
            raise InferenceError(error.message, error.code) from error
        finally:
            self._catalogue.ensembles.on_change(name)

    async def change(self, entry: ModelEntry, versions: Mapping[int, ModelSource]) -> None:
        """Make a model serve exactly these versions; its lock must be held.

        Raises ModelLoadError: a version failed; the old versions keep serving.
        """
        try:
            await self._life_cycle.load(entry, versions, self._make)
        finally:
            bounded = any(source.bounds for source in versions.values())
            self._bounds.note(entry.full_name, entry.versions.values(), is_repositorys=not bounded)

    # Unloading

    async def begin_unload(
        self, name: str, asked_by: str = "", *, unload_dependents: bool, only_if_mere_part: bool = False
    ) -> None:
        """Begin to unload a model; unknown names are ignored.

        Args:
            unload_dependents: also unload parts that were loaded only for this ensemble and are not otherwise needed.
            only_if_mere_part: do nothing unless it is such a part.
        """
        async with self.locks.changing(name, asked_by):
            if only_if_mere_part and not self._catalogue.ensembles.is_mere_part(name):
                return
            parts = self._catalogue.ensembles.parts(name)
            self.retire(name)
        if unload_dependents:
            for part in sorted(parts):
                await self.begin_unload(part, asked_by, unload_dependents=True, only_if_mere_part=True)

    def retire(self, name: str) -> None:
        """Begin to unload every version of a model; its lock must be held."""
        entry = self._catalogue.entries.get(name)
        if entry is None:
            self._catalogue.forget(name)
            return
        self._life_cycle.retire(entry.versions.values())
        # Failures of an unloaded model must not keep the server from being ready.
        entry.forget_failures()
        if not entry.versions:
            self._catalogue.forget(name)
        self._catalogue.ensembles.on_change(name)


def check_name(name: str) -> None:
    """Check the name in a load request."""
    trimmed = name.strip()
    if not trimmed:
        raise InferenceError("Model name cannot be empty. Please enter a valid name to deploy.", ErrorCode.INVALID_ARG)
    if trimmed in {".", ".."} or "/" in name:
        raise InferenceError(
            f"invalid model name '{name}', model name must not contain path traversal characters", ErrorCode.INVALID_ARG
        )


def _poll_error(name: str, error: ModelLoadError) -> InferenceError:
    message = f"failed to load '{name}', failed to poll from model repository: {error.message}"
    printable = message.encode("utf-8", "backslashreplace").decode()  # models may request any name
    log.error("%s", printable, extra=about_model(name.encode("utf-8", "backslashreplace").decode(), ""))
    return InferenceError(message, error.code if error.code is ErrorCode.UNAVAILABLE else ErrorCode.INTERNAL)


class ModelLocks:
    """Locks by model name, created on demand.

    A load requested by a model that is being initialised counts for nothing in ``most_loads``: the load that waits for
    it has a place already.
    """

    def __init__(self, most_loads: int) -> None:
        self._places = asyncio.Semaphore(most_loads)
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._waits: list[tuple[str, str]] = []

    @asynccontextmanager
    async def loading(self, name: str, asked_by: str = "") -> AsyncIterator[None]:
        """Wait until a model may be loaded, and block other changes of it meanwhile.

        Raises InferenceError: the model would wait for itself.
        """
        async with AsyncExitStack() as held:
            if not asked_by:
                # Places come before locks: a lock holder waiting for a place could block the place's holder.
                await held.enter_async_context(self._places)
            await held.enter_async_context(self.changing(name, asked_by))
            yield

    @asynccontextmanager
    async def changing(self, name: str, asked_by: str = "") -> AsyncIterator[None]:
        """Wait until a model's versions may be changed; see :meth:`loading`."""
        if asked_by:
            self._refuse_circle(name, asked_by)
            self._waits.append((asked_by, name))
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users > 1:
                self._locks[name] = (lock, users - 1)
            else:
                del self._locks[name]
            if asked_by:
                self._waits.remove((asked_by, name))

    def _refuse_circle(self, name: str, asked_by: str) -> None:
        waits = [*self._waits, (asked_by, name)]
        circle = circle_of(asked_by, lambda model: [awaited for waiting, awaited in waits if waiting == model])
        if circle:
            raise InferenceError(
                f"model '{asked_by}' would wait for itself: it is being initialised, and '{name}' cannot be changed "
                f"until that has ended ({' -> '.join(circle)})"
            )
