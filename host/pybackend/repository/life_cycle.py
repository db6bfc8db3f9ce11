"""Replaces versions of a model: new ones are ready before old ones stop, so that no request is refused."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.model.model import Model, ModelState
from pybackend.model.own_files import OwnFiles
from pybackend.model.python_model import PythonModel
from pybackend.model.source import ModelSource
from pybackend.modelconfig.traffic import TrafficRules, configured_traffic
from pybackend.observability.log_lines import about_model
from pybackend.observability.logging import DETAIL
from pybackend.repository.entry import ModelEntry
from pybackend.repository.file_override import OverrideDirectories
from pybackend.repository.remote import RemoteRepositories
from pybackend.repository.reports import Unfinished
from pybackend.settings import ModelSettings

log = logging.getLogger(__name__)

_SHARE_TO_FINALIZE, _LONGEST_TO_FINALIZE_S = 0.1, 10.0
"""The last part of a server's exit timeout, in which idle models are finalized even if requests of others go on."""

_FRAMES = "\n\nAt:\n"
"""In the reason of a load that an exception of the model ended: its process has written the traceback to the log."""

SLOW_LOAD_S = 2.0
"""The log says what a version does that is still loading after so long."""

MakeModel = Callable[[ModelSource], Model]
"""Makes a version that is not loaded yet."""

FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 5.0
"""Wait before a failed load is tried again; it doubles with each attempt."""


class VersionsFailedError(ModelLoadError):
    """Versions of a model failed to load."""

    def __init__(self, name: str, failed: Iterable[Model]) -> None:
        failures = dict.fromkeys((model.load_failure, model.reason) for model in failed)
        message = f"load failed for model '{name}': {''.join(dict.fromkeys(text for text, _ in failures))}"
        super().__init__(message, ErrorCode.INVALID_ARG)
        # their reasons, without what clients look for
        self.why = "; ".join(dict.fromkeys(reason.removeprefix("Internal: ") for _, reason in failures))


class ModelLifeCycle:
    """Loads, replaces and unloads versions."""

    def __init__(
        self, settings: ModelSettings, directories: OverrideDirectories, remote: RemoteRepositories, own_files: OwnFiles
    ) -> None:
        self._settings = settings
        self._directories = directories
        self._remote = remote
        self._own_files = own_files
        self._alive: dict[Model, Path] = {}
        self._retiring: dict[Model, asyncio.Task[bool]] = {}

    # Loading

    async def load(self, entry: ModelEntry, sources: Mapping[int, ModelSource], make: MakeModel) -> None:
        """Make an entry serve exactly these versions; only one change of an entry may run at a time.

        Serving versions whose files have not changed stay as they are. New versions are loaded while old ones serve,
        and take over when all of them are ready.

        Raises ModelLoadError: a version failed; the old versions keep serving.
        """
        serving = {int(model.version): model for model in entry.ready_versions()}
        sources, entry.sources = self._without_own_files(sources), self._without_own_files(entry.sources)
        await self._change_instances(entry, serving, sources)
        new = {
            version: self._create(source, make)
            for version, source in sources.items()
            if not (version in serving and serving[version].health.is_ready and source.equals(entry.sources[version]))
        }
        if not serving:
            self.retire(entry.versions.values())  # instances that gave up may still have processes
            entry.set_versions(new, sources)
            entry.configure_rules(_rules_of(sources))
        outcomes = await self._load_versions(new.values())
        for attempt in range(self._settings.load_retry_count):
            again = [
                version for version, model in new.items() if not (model.state is ModelState.READY or model.may_recover)
            ]
            if not again or any(outcomes):
                break
            await asyncio.sleep(min(FIRST_RETRY_S * 2**attempt, LONGEST_RETRY_S))
            log.info(
                "loading '%s' once more: retry %d of %d",
                entry.full_name,
                attempt + 1,
                self._settings.load_retry_count,
            )
            new |= {version: self._create(sources[version], make) for version in again}
            if not serving:
                entry.set_versions(new, sources)
            outcomes = await self._load_versions([new[version] for version in again])
        unexpected = [outcome for outcome in outcomes if outcome is not None]
        failed = [model for model in new.values() if model.state is not ModelState.READY]
        if unexpected or (failed and serving):
            self.retire(new.values())
        if unexpected:
            raise unexpected[0]
        if failed:
            raise VersionsFailedError(entry.full_name, failed)
        if serving:
            # Versions that are no longer served stay visible as unloaded.
            before = entry.versions.values()
            entry.set_versions({**serving, **new}, {**entry.sources, **sources})
            entry.configure_rules(_rules_of(sources))
            kept = {model for version, model in entry.versions.items() if version in sources}
            replaced = [model for model in before if model not in kept]  # also what was given up, and is tried again
            for model in replaced:
                if isinstance(model, PythonModel):
                    model.sequences.keep()
            self.retire(replaced)
            self._pass_sequences_on(entry.full_name)

    def _without_own_files(self, sources: Mapping[int, ModelSource]) -> dict[int, ModelSource]:
        own = self._own_files
        return {version: each.without(own.of(each.directory)) for version, each in sources.items()}

    async def _change_instances(
        self, entry: ModelEntry, serving: Mapping[int, Model], sources: Mapping[int, ModelSource]
    ) -> None:
        """Bring serving versions up to date if nothing but their instances has changed.

        Raises ModelLoadError: an instance could not be started; its version keeps those that it has.
        """
        for version, model in serving.items():
            source = sources.get(version)
            if source is None or not isinstance(model, PythonModel) or not model.can_change_instances(source):
                continue
            origin = entry.sources[version]
            if source.equals(origin) or not source.differs_in_instances(origin):
                continue
            before = len(model.instances)
            try:
                await model.change_instances(source)
            except ModelLoadError as error:
                log.error(  # noqa: TRY400  no bug of ours
                    "failed to change the instances of '%s' version %s: %s",
                    model.full_name,
                    model.version,
                    error.reason(),
                    extra=about_model(model.full_name, model.version),
                )
                raise ModelLoadError(
                    f"load failed for model '{entry.full_name}': version {version} keeps its {before} instances: "
                    f"{error.reason()};\n",
                    ErrorCode.INVALID_ARG,
                ) from error
            entry.sources = {**entry.sources, version: source}
            log.info(
                "'%s' version %s has %d instances now, and had %d",
                model.full_name,
                model.version,
                len(model.instances),
                before,
                extra=about_model(model.full_name, model.version),
            )

    async def _load_versions(self, models: Iterable[Model]) -> list[BaseException | None]:
        """Load versions; returns unexpected errors, and None for a version that is ready or has failed."""
        return await asyncio.gather(*map(self._load_version, models), return_exceptions=True)

    def _create(self, source: ModelSource, make: MakeModel) -> Model:
        model = make(source)
        self._alive[model] = source.directory
        self._directories.hold(source.directory)
        return model

    async def _load_version(self, model: Model) -> None:
        about = about_model(model.full_name, model.version)
        log.info("loading: %s:%s", model.full_name, model.version, extra=DETAIL | about)
        slow = asyncio.get_running_loop().call_later(SLOW_LOAD_S, _say_slow, model)
        try:
            await model.load()
        except ModelLoadError as error:
            log.error(  # noqa: TRY400  the model's traceback is part of the reason, ours would say nothing
                "failed to load '%s' version %s: %s",
                model.full_name,
                model.version,
                error.reason(),
                extra=DETAIL | about if _FRAMES in error.message else about,
            )
            if not model.may_recover:
                await self._forget(model)
            return
        finally:
            slow.cancel()
        took_s = model.statistics.load_duration_ns / 1e9
        log.info("successfully loaded '%s' version %s in %.2f s", model.full_name, model.version, took_s, extra=about)

    # Unloading

    def retire(self, models: Iterable[Model]) -> None:
        """Begin to unload versions: they accept no further requests and answer those they have."""
        for model in models:
            if model in self._alive and model not in self._retiring:
                model.state = ModelState.UNLOADING  # immediately: the task starts only on the loop's next turn
                end = asyncio.create_task(self._unload(model, None, self._settings.exit_timeout_s))
                end.add_done_callback(partial(self._retired, model))
                self._retiring[model] = end

    def _retired(self, model: Model, _end: asyncio.Task[bool]) -> None:
        del self._retiring[model]
        if isinstance(model, PythonModel) and model.sequences.cut:
            for successor in self._versions_that_stay(model.full_name):
                successor.sequences.cut = model.sequences.cut
        self._pass_sequences_on(model.full_name)

    def _pass_sequences_on(self, name: str) -> None:
        """Tell a model's versions which ones they replace that still have sequences."""
        ending = [
            model
            for model in self._retiring
            if model.full_name == name and isinstance(model, PythonModel) and model.sequences.are_active
        ]
        for model in self._versions_that_stay(name):
            model.sequences.predecessors = ending

    def _versions_that_stay(self, name: str) -> list[PythonModel]:
        return [
            model
            for model in self._alive
            if model.full_name == name and isinstance(model, PythonModel) and model not in self._retiring
        ]

    async def _unload(self, model: Model, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        in_time = await model.unload(drain_timeout_s, finalize_timeout_s)
        about = about_model(model.full_name, model.version)
        if model.was_ready and in_time:
            log.info("successfully unloaded '%s' version %s", model.full_name, model.version, extra=DETAIL | about)
        elif model.was_ready:
            text = "'%s' version %s is unloaded, but its last requests or `finalize` did not end in time and were cut short"
            log.warning(text, model.full_name, model.version, extra=about)
        await self._forget(model)
        return in_time

    async def _forget(self, model: Model) -> None:
        directory = self._alive.pop(model)
        await self._directories.let_go(directory)
        await self._remote.tidy(directory)

    async def unload_all(self, deadline_s: float) -> bool:
        """Unload everything by a deadline of the loop's clock; True if nothing had to be cut short.

        Requires that no model is loading. Unloads that are already running get this deadline too, as do those from an
        earlier call that was cancelled.
        """
        retiring = list(self._retiring.values())
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)
        # Models that run other models for a client's request need them until it is answered. If one hangs, the others
        # are nevertheless finalized.
        remaining_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        remaining_s -= min(remaining_s * _SHARE_TO_FINALIZE, _LONGEST_TO_FINALIZE_S)
        await asyncio.gather(*(model.open_requests.clients_answered_within(remaining_s) for model in self._alive))
        remaining_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        in_time = await asyncio.gather(*(self._unload(model, remaining_s, remaining_s) for model in list(self._alive)))
        return all(in_time)

    def unfinished(self) -> list[Unfinished]:
        """The versions that still have requests, or are being finalized."""
        return [
            Unfinished(model.full_name, model.version, model.open_requests.count)
            for model in self._alive
            if model.open_requests.count or model.state is ModelState.UNLOADING
        ]

    def versions_of(self, directory: Path) -> list[int]:
        """The versions that are alive and were loaded from a directory."""
        return [int(model.version) for model, used in self._alive.items() if used == directory]

    def alive(self, full_name: str) -> list[Model]:
        """The versions of a model that have resources, even if they are loading, or answer their last requests."""
        return [model for model in self._alive if model.full_name == full_name]

    def trim(self) -> None:
        """Release idle memory of all models; called about once a second."""
        now_ns = time.monotonic_ns()
        for model in self._alive:
            model.trim(now_ns)


def _rules_of(sources: Mapping[int, ModelSource]) -> TrafficRules | None:
    """The traffic rules of the configuration that all sources share."""
    return next((configured_traffic(each.config, sources) for each in sources.values()), None)


def _say_slow(model: Model) -> None:
    about = about_model(model.full_name, model.version)
    log.info(
        "'%s' version %s is still loading after %g s: %s",
        model.full_name,
        model.version,
        SLOW_LOAD_S,
        model.load_stage,
        extra=about,
    )
