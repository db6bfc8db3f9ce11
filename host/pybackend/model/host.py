"""The services and settings that a server's models share; the server makes them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.environment.cache import EnvironmentCache, default_cache_directory
from pybackend.environment.provider import EnvironmentProvider
from pybackend.inference.pending import ResponsePath, to_sender
from pybackend.inference.queued_bytes import QueuedBytes
from pybackend.instance.debugging import DebuggerPorts, Terminal
from pybackend.instance.resources import ResourceTable
from pybackend.instance.services import StubServices
from pybackend.instance.settings import DisconnectSlowClients, no_clients
from pybackend.instance.shared_core import SharedCore
from pybackend.ipc.arena import TensorBudget
from pybackend.model.cache.response_cache import ResponseCache
from pybackend.model.router import ModelRouter
from pybackend.modelconfig.backend_places import BackendPlaces
from pybackend.process.launcher import StubLauncher
from pybackend.sandbox.runtime_directory import runtime_places
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import DebugSettings, MetricsSettings, ModelSettings


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
        shared_core: where the server and models' processes wait while requests come one at a time.
        settings: how models are loaded and run.
        metrics: selects the distributions of latencies that are measured.
        backends: where Python-based backends are, and the operator's settings of each.
        environments: prepares the environments that models name.
        sandbox: confines models, None for no confinement.
        cache: the response cache, None for none.
        queued_bytes: limits the bytes of all queued requests, None for no limit.
        resources: the rate limiter's resources, None for no rate limiting.
        debugger: the models that run under a debugger, and its ports.
        terminal: lent to models that stop at breakpoints, None for no terminal.
        gpu_count: number of GPUs in this machine.
        runtime_places: candidate locations for the server's private runtime directories.
        disconnect_slow_clients: called when the output memory of a process is short.
        tensor_budget: the memory for the tensors of all models; None for no limit.
    """

    launcher: StubLauncher
    services: StubServices
    router: ModelRouter
    shared_core: SharedCore
    settings: ModelSettings = field(default_factory=ModelSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    backends: BackendPlaces = field(default_factory=BackendPlaces)
    environments: EnvironmentProvider = field(default_factory=_environments)
    sandbox: Sandbox | None = None
    cache: ResponseCache | None = None
    queued_bytes: QueuedBytes | None = None
    resources: ResourceTable | None = None
    debugger: DebuggerPorts = field(default_factory=_nothing_debugged)
    terminal: Terminal | None = None
    gpu_count: int = 0
    runtime_places: Sequence[Path] = field(default_factory=lambda: runtime_places(default_cache_directory()))
    disconnect_slow_clients: DisconnectSlowClients = no_clients
    tensor_budget: TensorBudget | None = None

    @property
    def path_to_sender(self) -> ResponsePath:
        """The end of each model's response path, after the model's own stages."""
        return to_sender if self.queued_bytes is None else self.queued_bytes.on_response
