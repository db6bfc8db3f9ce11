"""The services and settings that a server's models share; the server makes them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.cache.response_cache import ResponseCache
from pybackend.environment.cache import EnvironmentCache, default_cache_directory
from pybackend.environment.provider import EnvironmentProvider
from pybackend.inference.pending import ResponsePath, to_sender
from pybackend.inference.queued_bytes import QueuedBytes
from pybackend.instance.debugging import DebuggerPorts, Terminal
from pybackend.instance.plan import DisconnectSlowClients, no_clients
from pybackend.instance.resources import ResourceTable
from pybackend.instance.services import StubServices
from pybackend.instance.shared_core import SharedCore
from pybackend.ipc.arena import TensorBudget
from pybackend.model.router import ModelRouter
from pybackend.modelconfig.backend_places import BackendPlaces
from pybackend.process.launcher import StubLauncher
from pybackend.sandbox.runtime_directory import runtime_places
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import DEFAULT_SETTLE_S, DebugSettings, MetricsSettings


def _environments() -> EnvironmentProvider:
    return EnvironmentProvider(EnvironmentCache(default_cache_directory()))


def _nothing_debugged() -> DebuggerPorts:
    return DebuggerPorts(DebugSettings())


@dataclass(frozen=True, kw_only=True)
class ModelHost:
    """The server's interface for its models.

    The operator's settings are in :class:`pybackend.settings.Settings`; the properties of one version are in
    :class:`pybackend.model.source.ModelSource`.

    Attributes:
        launcher: starts model processes.
        services: answers requests from model code.
        router: sends ensembles' requests to their parts.
        auto_complete: True if models may complete their configuration.
        model_load_count: number of models that may load at the same time.
        model_memory_limit_bytes: limit on input memory per model, and on output memory per instance.
        shared_core: where the server and models' processes wait while requests come one at a time.
        explicit: True if models may be loaded and unloaded while the server runs.
        poll_s: time between looks for changes in the repositories; None if nothing looks for them.
        settle_s: the files of a model must stay the same for this long before it is loaded again.
        startup_models: names of the models to load at start, None for all.
        config_name: ``configs/<config_name>.pbtxt`` replaces config.pbtxt in models that have it; ``""`` for none.
        load_retry_count: how often a failed load of a version is tried again.
        finalize_timeout_s: time limit for ``finalize`` when a version is replaced or unloaded, None for no limit.
        abandoned_limit_s: how long a replaced version may go on with an execution for which nobody waits; None for as long as it
            likes.
        backends: where Python-based backends are, and the operator's settings of each.
        environments: prepares the environments that models name.
        sandbox: confines models, None for no confinement.
        cache: the response cache, None for none.
        queued_bytes: limits the bytes of all queued requests, None for no limit.
        resources: the rate limiter's resources, None for no rate limiting.
        debugger: the models that run under a debugger, and its ports.
        terminal: lent to models that stop at breakpoints, None for no terminal.
        host_policies: CPU cores for instance processes, by policy name.
        gpu_count: number of GPUs in this machine.
        validate_outputs: outputs must be as configured, in models that do not say.
        gpu_models_on_cpu: without a GPU, models that are configured for one run on the CPU.
        metrics: selects the distributions of latencies that are measured.
        runtime_places: candidate locations for the server's private runtime directories.
        disconnect_slow_clients: called when the output memory of a process is short.
        tensor_budget: the memory for the tensors of all models; None for no limit.
    """

    launcher: StubLauncher
    services: StubServices
    router: ModelRouter
    auto_complete: bool
    model_load_count: int
    model_memory_limit_bytes: int
    shared_core: SharedCore
    explicit: bool = False
    poll_s: float | None = None
    settle_s: float = DEFAULT_SETTLE_S
    startup_models: tuple[str, ...] | None = None
    config_name: str = ""
    load_retry_count: int = 0
    finalize_timeout_s: float | None = None
    abandoned_limit_s: float | None = None
    backends: BackendPlaces = field(default_factory=BackendPlaces)
    environments: EnvironmentProvider = field(default_factory=_environments)
    sandbox: Sandbox | None = None
    cache: ResponseCache | None = None
    queued_bytes: QueuedBytes | None = None
    resources: ResourceTable | None = None
    debugger: DebuggerPorts = field(default_factory=_nothing_debugged)
    terminal: Terminal | None = None
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    gpu_count: int = 0
    validate_outputs: bool = False
    gpu_models_on_cpu: bool = False
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    runtime_places: Sequence[Path] = field(default_factory=lambda: runtime_places(default_cache_directory()))
    disconnect_slow_clients: DisconnectSlowClients = no_clients
    tensor_budget: TensorBudget | None = None

    @property
    def tracks_files(self) -> bool:
        """True if later loads compare a model's files with those of the version that serves."""
        return self.explicit or self.poll_s is not None

    @property
    def path_to_sender(self) -> ResponsePath:
        """The end of each model's response path, after the model's own stages."""
        return to_sender if self.queued_bytes is None else self.queued_bytes.on_response
