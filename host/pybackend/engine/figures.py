"""The figures of a server's models, for reports such as the metrics page: plain values, read when they are needed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pybackend.instance.settings import InstanceState
from pybackend.model.model import Model, ModelState
from pybackend.modelconfig.schema import ModelConfig, Scheduling
from pybackend.repository.entry import ModelStatus
from pybackend.repository.remote import Listing
from pybackend.repository.repository import ModelRepository
from pybackend.scheduler.scheduler import BatchReason

# An enumeration's lookup would cost more than the rest.
_READY, _BATCHING = InstanceState.READY, Scheduling.DYNAMIC_BATCHING


class VersionFigures:
    """Reads the figures of a version."""

    __slots__ = ("_model", "identity", "name", "namespace", "statistics", "version")

    def __init__(self, model: Model) -> None:
        self._model = model
        self.identity: object = model  # tells versions apart, and lives as long as the version does
        self.name = model.name
        self.namespace = model.namespace  # ``""`` on a server without namespaces
        self.version = model.version
        self.statistics = model.statistics

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def has_served(self) -> bool:
        """True for a version that serves, or has failed after it has served: its counters go on."""
        model = self._model
        return model.state is ModelState.READY or (
            model.state is ModelState.UNAVAILABLE and model.was_ready and not model.is_off
        )

    @property
    def was_unloaded(self) -> bool:
        """True if it, or a part of it, was deliberately unloaded."""
        return self._model.is_off and self._model.state is ModelState.UNAVAILABLE

    @property
    def is_ready(self) -> bool:
        """True as for a probe, if the model's own check says what it said last.

        See :meth:`RepositoryFigures.ask_models`.
        """
        health = self._model.health
        return health.is_ready and not health.own_objection

    @property
    def pending_count(self) -> int:
        """Requests that wait for their execution."""
        return self._model.pending_count

    @property
    def batches(self) -> Sequence[tuple[str, int]]:
        """The number of batches by the reason why they did not grow; empty without a dynamic batcher."""
        if self._model.config.scheduling is not _BATCHING:
            return ()
        counts = self._model.statistics.batches
        return tuple([(reason, counts[reason]) for reason in BatchReason])

    @property
    def confinement(self) -> Mapping[str, Any] | None:
        """The confinement of its processes, as ``level`` and ``not_in_force``; None if they are not confined."""
        sandbox = self._model.sandbox
        return None if sandbox is None else sandbox.summary()

    # Memory

    @property
    def input_memory_bytes(self) -> int:
        """Shared memory that its inputs use or keep warm."""
        return self._model.arena.total_bytes

    @property
    def output_memory_bytes(self) -> int:
        """Shared memory that its processes have for outputs."""
        return sum([each.output_memory_bytes for each in self._model.instances])

    @property
    def copied_bytes(self) -> int:
        """Size of all tensors that were copied into its input memory."""
        return self._model.arena.leased_bytes

    # Instances

    @property
    def processes(self) -> list[tuple[str, int]]:
        """The instances that have a process: name and process id."""
        return [(each.name, each.pid) for each in self._model.instances if each.pid is not None]

    @property
    def instance_count(self) -> int:
        return len(self._model.instances)

    @property
    def ready_count(self) -> int:
        """Number of instances whose processes serve."""
        return sum([each.state is _READY for each in self._model.instances])

    @property
    def restart_count(self) -> int:
        """Number of processes that were replaced after they had died."""
        return sum([each.restart_count for each in self._model.instances])

    @property
    def renewal_count(self) -> int:
        """Number of processes that have made place for another one while they served."""
        return sum([each.renewal_count for each in self._model.instances])

    @property
    def dropped_lines(self) -> int:
        """Number of lines that the model wrote and that the server's log did not take."""
        return sum([each.output.dropped_lines for each in self._model.instances])

    @property
    def running_count(self) -> int:
        """Number of calls of ``execute`` that run now."""
        return sum([len(each.executor.running) for each in self._model.instances])

    @property
    def oldest_execution_s(self) -> float:
        """How long the oldest of these calls has run, or 0."""
        now_ns = time.monotonic_ns()
        return max([each.executor.busy_ns(now_ns) for each in self._model.instances], default=0) / 1e9


class RepositoryFigures:
    """Reads the figures of all models."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository, self._catalogue = repository, repository.catalogue

    async def ask_models(self) -> None:
        """Ask the models whether they are ready; see :meth:`ModelCatalogue.ask_models`."""
        await self._catalogue.ask_models()

    def versions(self) -> list[VersionFigures]:
        """The versions that have figures; see :attr:`VersionFigures.has_served`."""
        return [version for version in map(VersionFigures, self._catalogue.models()) if version.has_served]

    def known(self) -> Iterator[tuple[ModelStatus, VersionFigures | None]]:
        """A row for each known version, with its figures, and for each model without a version that has failed."""
        for row, model in self._catalogue.known():
            yield row, None if model is None else VersionFigures(model)

    def changes(self) -> Iterator[tuple[str, str, bool]]:
        """Each model that serves, or whose last change failed: name, namespace, and whether the change failed."""
        for full_name, entry in self._catalogue.entries.items():
            failed = entry.has_failed_change
            if failed or any(version.health.is_ready for version in entry.versions.values()):
                namespace, name = self._catalogue.names.split(full_name)
                yield name, namespace, failed

    @property
    def listings(self) -> Sequence[Listing]:
        return tuple(self._repository.remote.listings.values())
