"""The services and settings that a server's models share, and the way to run each other with the same rules as clients."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pybackend.environment.cache import EnvironmentCache, default_cache_directory
from pybackend.environment.provider import EnvironmentProvider
from pybackend.gpus import Gpus
from pybackend.inference.pending import PendingRequest, QueuedBytes
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.validation import Checked
from pybackend.instance.debugging import DebuggerPorts, Terminal
from pybackend.instance.resources import ResourceTable
from pybackend.instance.settings import DisconnectSlowClients, no_clients
from pybackend.ipc.arena import TensorArena, TensorBudget
from pybackend.model.cache.response_cache import ResponseCache
from pybackend.model.groups import ProcessGroups
from pybackend.model.model import Model
from pybackend.model.own_files import OwnFiles
from pybackend.model.source import ModelSource
from pybackend.modelconfig.backends import BackendPlaces
from pybackend.modelconfig.signature import ExtrasOf, no_extras
from pybackend.process.caller import Caller
from pybackend.process.launcher import StubLauncher
from pybackend.sandbox.runtime_directory import runtime_places
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import DebugSettings, MetricsSettings, ModelSettings


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """The reason why no version of a model serves, or why one serves that is not what its repository has.

    Attributes:
        reason: in the words of the repository index.
        known: False if there is no such model, or several.
        on_purpose: True if it was unloaded.
        since_s: in seconds since 1970.
    """

    reason: str
    known: bool = True
    on_purpose: bool = False
    since_s: float = field(default_factory=time.time)


class ModelRouter(Protocol):
    """Finds models, and accepts requests to them."""

    def find(self, name: str, version: str = "", home: str = "") -> Model:
        """The version that stands for a model; ``version`` is decimal, and ``""`` selects one that answers requests.

        A model of this name in the namespace ``home`` comes before others.

        Raises:
            InferenceError: there is no such version.
        """

    def absence(self, name: str, home: str = "") -> NotLoaded:
        """The reason why :meth:`find` finds no version of a model."""

    def submit(
        self,
        model: Model,
        request: InferenceRequest,
        on_response: OnResponse,
        any_version: bool,
        checked: Checked = Checked.NOTHING,
    ) -> PendingRequest:
        """Validate a request against the model's signature, as far as it was not checked before, and queue it.

        If it may go to ``any_version``, because it names none, another version may answer.

        Raises:
            InferenceError: the request is refused, and its memory remains the caller's.
        """

    def on_queued(self) -> None:
        """A model that waits for an ensemble now waits for something else: check whether it waits for itself."""


@dataclass(frozen=True, kw_only=True)
class ModelHost:
    """The server's interface for its models.

    The operator's settings are in :class:`pybackend.settings.Settings`; the properties of one version are in
    :class:`pybackend.model.source.ModelSource`.

    Attributes:
        metrics: selects the distributions of latencies that are measured.
        sandbox: None for no confinement.
        queued_bytes: limits the bytes of all queued requests, None for no limit.
        resources: the rate limiter's, None for no rate limiting.
        debugger: the models that run under a debugger, and its ports.
        terminal: lent to models that stop at breakpoints, None for no terminal.
        runtime_places: candidate locations for the server's private runtime directories.
        disconnect_slow_clients: called when the output memory of a process is short.
        gpus: those that instances may be placed on.
        groups: of models that live in one process.
        caller: the program whose functions some models are; None if all models have code.
        extras_of: reads configurations for further APIs.
        own_files: what models write beside their code.
        tensor_budget: the memory for the tensors of all models; None for no limit.
    """

    launcher: StubLauncher
    extras_of: ExtrasOf = no_extras
    settings: ModelSettings = field(default_factory=ModelSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    backends: BackendPlaces = field(default_factory=BackendPlaces)
    environments: EnvironmentProvider = field(
        default_factory=lambda: EnvironmentProvider(EnvironmentCache(default_cache_directory()))
    )
    sandbox: Sandbox | None = None
    cache: ResponseCache | None = None
    queued_bytes: QueuedBytes | None = None
    resources: ResourceTable | None = None
    debugger: DebuggerPorts = field(default_factory=lambda: DebuggerPorts(DebugSettings()))
    terminal: Terminal | None = None
    gpus: Gpus = field(default_factory=Gpus)
    runtime_places: Sequence[Path] = field(default_factory=lambda: runtime_places(default_cache_directory()))
    disconnect_slow_clients: DisconnectSlowClients = no_clients
    tensor_budget: TensorBudget | None = None
    groups: ProcessGroups = field(default_factory=ProcessGroups)
    caller: Caller | None = None
    own_files: OwnFiles = field(default_factory=OwnFiles)

    def arena_of(self, source: ModelSource) -> TensorArena:
        """New input memory for a version."""
        return TensorArena(self.settings.memory_limit_bytes, source.full_name, self.tensor_budget)
