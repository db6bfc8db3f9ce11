"""The models that this server knows: loading them, finding them, unloading them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.instance.stub_process import StubLauncher
from pybackend.model.model import Model, ModelSource, ModelState, not_ready
from pybackend.modelconfig.loader import load_config
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan
from pybackend.repository.version_policy import choose_versions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadOptions:
    """How models are loaded; see :class:`pybackend.settings.Settings`."""

    auto_complete: bool
    model_load_count: int
    model_memory_limit_bytes: int
    gpu_count: int = 0


@dataclass
class ModelEntry:
    """A name in the repository.

    Attributes:
        name: the model's name.
        versions: by number, also those that failed to load.
        reason: why there are none, e.g. a configuration that does not parse.
        newest_first: the same versions, highest number first.
    """

    name: str
    versions: dict[int, Model] = field(default_factory=dict)
    reason: str = ""
    newest_first: tuple[Model, ...] = ()

    def set_versions(self, models: dict[int, Model]) -> None:
        """Replace the versions."""
        self.versions = models
        self.newest_first = tuple(model for _, model in sorted(models.items(), reverse=True))

    def ready_versions(self) -> list[Model]:
        """Versions that take requests, ascending."""
        return [model for _, model in sorted(self.versions.items()) if model.state is ModelState.READY]


@dataclass(frozen=True)
class ModelStatus:
    """One row of the table of models."""

    name: str
    version: str
    status: str


class ModelRepository:
    """All models by name."""

    def __init__(self, scan: RepositoryScan, launcher: StubLauncher, options: LoadOptions) -> None:
        self._scan = scan
        self._launcher = launcher
        self._options = options
        self._entries: dict[str, ModelEntry] = {}

    # Life

    async def load_all(self) -> bool:
        """Load every model; True if all of them are ready afterwards."""
        for warning in self._scan.warnings:
            log.warning("%s", warning)
        for name in self._scan.duplicates:
            self._entries[name] = ModelEntry(name, reason=DUPLICATE_REASON)
        for name in self._scan.models:
            self._entries[name] = ModelEntry(name)
        limit = asyncio.Semaphore(self._options.model_load_count)
        await asyncio.gather(
            *(self._load(self._entries[name], directory, limit) for name, directory in self._scan.models.items())
        )
        return all(
            entry.versions and all(model.state is ModelState.READY for model in entry.versions.values())
            for entry in self._entries.values()
        )

    async def _load(self, entry: ModelEntry, directory: Path, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                sources = self._sources(directory)
            except ModelLoadError as error:
                entry.reason = error.reason()
                log.error("failed to load '%s': %s", entry.name, error.reason())  # noqa: TRY400  no bug of ours
                return
            entry.set_versions({source.version: Model(source, self._launcher) for source in sources})
            await asyncio.gather(*(self._load_version(model) for model in entry.versions.values()))

    async def _load_version(self, model: Model) -> None:
        log.info("loading: %s:%s", model.name, model.version)
        try:
            await model.load()
        except ModelLoadError as error:
            log.error(  # noqa: TRY400  the model's traceback is part of the reason, ours would say nothing
                "failed to load '%s' version %s: %s", model.name, model.version, error.reason()
            )
            return
        took_s = model.statistics.load_duration_ns / 1e9
        log.info("successfully loaded '%s' version %s in %.2f s", model.name, model.version, took_s)

    def _sources(self, directory: Path) -> list[ModelSource]:
        options = self._options
        config = load_config(directory, auto_complete=options.auto_complete)
        scan = scan_versions(directory)
        for warning in scan.warnings:
            log.warning("%s", warning)
        served = choose_versions(config, scan.versions)
        for warning in served.warnings:
            log.warning("%s", warning)
        return [
            ModelSource(
                name=config.name,
                version=version,
                directory=directory,
                config=config,
                auto_complete=options.auto_complete,
                memory_limit_bytes=options.model_memory_limit_bytes,
                gpu_count=options.gpu_count,
            )
            for version in served.versions
        ]

    async def unload(self, name: str, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Unload every version of a model; True if nothing had to be cut short."""
        entry = self._entries.get(name)
        if entry is None:
            return True
        # Those that are being unloaded too: whoever asked for that may have been cut short.
        loaded = [model for model in entry.versions.values() if model.state is not ModelState.UNAVAILABLE]
        drained = await asyncio.gather(*(model.unload(drain_timeout_s, finalize_timeout_s) for model in loaded))
        for model in loaded:
            log.info("successfully unloaded '%s' version %s", name, model.version)
        return all(drained)

    async def unload_all(self, deadline_s: float) -> bool:
        """Unload everything by a deadline of the loop's clock; True if nothing had to be cut short."""
        remaining_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        drained = await asyncio.gather(*(self.unload(name, remaining_s, remaining_s) for name in self._entries))
        return all(drained)

    # Look-up

    def find(self, name: str, version: str = "") -> Model:
        """The version that answers a request.

        Args:
            name: the model's name.
            version: decimal, or ``""`` for the highest that is ready.

        Raises:
            InferenceError: there is no such model, no such version, or it does not serve now.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise InferenceError(f"Request for unknown model: '{name}' is not found", ErrorCode.INVALID_ARG)
        if not version:
            for model in entry.newest_first:
                if model.state is ModelState.READY:
                    return model
            raise InferenceError(f"Request for unknown model: '{name}' has no available versions", ErrorCode.NOT_FOUND)
        found = entry.versions.get(int(version))
        if found is None:
            raise InferenceError(
                f"Request for unknown model: '{name}' version {version} is not found", ErrorCode.NOT_FOUND
            )
        if found.state is not ModelState.READY:
            raise not_ready(name, version)
        return found

    def ready_versions(self, name: str) -> list[Model]:
        """Versions of a model that take requests, ascending; none if there is no such model."""
        entry = self._entries.get(name)
        return [] if entry is None else entry.ready_versions()

    def models(self) -> Iterator[Model]:
        """Every version that is known, sorted by name and number."""
        for _, entry in sorted(self._entries.items()):
            for _, model in sorted(entry.versions.items()):
                yield model

    @property
    def all_ready(self) -> bool:
        """True if every known model serves, or was unloaded on purpose."""
        return all(
            bool(entry.versions)
            and all(model.is_ready or model.reason == "unloaded" for model in entry.versions.values())
            for entry in self._entries.values()
        )

    def table(self) -> list[ModelStatus]:
        """What became of every model, for the terminal."""
        rows = []
        for name, entry in sorted(self._entries.items()):
            if not entry.versions:
                rows.append(ModelStatus(name, "-", f"UNAVAILABLE: {entry.reason}"))
            for version, model in sorted(entry.versions.items()):
                status = model.state.value + (f": {model.reason}" if model.reason else "")
                rows.append(ModelStatus(name, str(version), status))
        return rows

    def trim(self) -> None:
        """Give idle memory of all models back; called about once a second."""
        now_ns = time.monotonic_ns()
        for model in self.models():
            model.trim(now_ns)
