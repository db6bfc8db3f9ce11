"""The interface of a model version, for all kinds of models."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from pybackend.errors import ErrorCode, InferenceError, NotServingError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.tensor import Lease
from pybackend.instance.model_instance import ModelInstance
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.model.open_requests import OpenRequests
from pybackend.model.source import ModelSource
from pybackend.model.statistics import ModelStatistics
from pybackend.modelconfig.signature import ModelSignature, signature_of
from pybackend.sandbox.model_sandbox import ModelSandbox

UNLOADED = "unloaded"
"""The reason shown for a version that was deliberately unloaded."""


Submit = Callable[["Model", InferenceRequest, OnResponse], PendingRequest]
"""Queues a request that was validated against a version."""


class ModelState(Enum):
    """The stage of a version's life; the values appear in the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Health(ABC):
    """Whether a version serves, by what the server knows of it and by the model's own ``is_ready``."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """True if requests are accepted and all instances are alive; excludes the model's own ``is_ready``."""

    @property
    @abstractmethod
    def has_is_ready(self) -> bool:
        """True if the model has its own readiness check."""

    async def not_ready_reason(self) -> str:
        """The reason why the model is not ready, including its own check; empty if it is ready."""
        model = self._model
        if model.state is ModelState.READY:
            return await self._objection()
        return model.reason or model.state.value.lower()

    @abstractmethod
    async def _objection(self) -> str:
        """The same, of a version that is READY."""

    @property
    @abstractmethod
    def own_objection(self) -> str:
        """Why the model is not ready although it is READY: its own check said so when it was last asked, or no instance serves."""

    @property
    @abstractmethod
    def keeps_askers_waiting(self) -> bool:
        """True while its own check has not returned in time, or if it may stop at a breakpoint."""


class Membership(NamedTuple):
    """A version's place in a group of models that share processes."""

    group: object
    member: int


class Model(ABC):
    """A version that is loading, serving, or unloading.

    Attributes:
        namespace: ``""`` on a server without namespaces.
        full_name: namespace and name, for messages, and wherever models are told apart by name.
        version: its decimal version.
        config: the configuration; completed once the version is loaded.
        signature: the inputs and outputs that requests are validated against.
        was_ready: it has been READY.
        reason: why it is not available, ``""`` if it is.
        failure: the error for requests while all its instances, or those of a part of it, are given up.
        digest: identifies its code and configuration, equal on all servers; empty if no cache needs it.
        open_requests: the requests that it has accepted and not answered.
        hold: keeps it, while it is being unloaded, able to answer other models' requests until the returned function is
            called.
        arena: the shared memory of its inputs.
        sandbox: confines its processes, and records their rights even after they have ended; None if they are not
            confined.
        instances: all of them, in configured order; empty if the model runs in other models' instances.
        environment: metadata about the Python environment that it brings; None if it runs on the server's Python.
        membership: how others in its processes may run it without the server; None if they may not.
        is_shadow: it gets copies of requests and answers nobody.
        is_newest: no rules, and no version with a higher number: while it is READY, it answers the requests that name
            no version.
    """

    health: Health
    """Whether it serves."""

    may_recover: ClassVar[bool] = False
    """True if a version that failed to load may serve later, without being loaded again."""

    def __init__(self, source: ModelSource, arena: TensorArena) -> None:
        self.name = source.name
        self.namespace = source.namespace
        self.full_name = source.full_name
        self.version = str(source.version)
        self.config = source.config
        self.signature: ModelSignature = signature_of(source.config)
        self.state = ModelState.LOADING
        self._made_s = time.monotonic()
        self.was_ready = False
        self.reason = ""
        self.failure: InferenceError | None = None
        self.statistics = ModelStatistics()
        self.digest = b""
        self.open_requests = OpenRequests()
        self.hold = self.open_requests.hold
        self.arena = arena
        self.sandbox: ModelSandbox | None = None
        self.environment: Mapping[str, Any] | None = None
        self.membership: Membership | None = None
        self.instances: Sequence[ModelInstance] = ()
        self.is_shadow = False
        self.is_newest = False

    def be_newest(self, *, newest: bool) -> None:
        """Say whether this version answers the requests that name none; see :attr:`is_newest`."""
        self.is_newest = newest

    # Life

    @abstractmethod
    async def load(self) -> None:
        """Make the model READY.

        Raises:
            ModelLoadError: loading failed; :attr:`reason` then shows the reason.
        """

    @abstractmethod
    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Answer all accepted requests and release everything; False if anything had to be cut short.

        The first limit is for the requests that were accepted before, the second for the model's ``finalize``. Both
        count from the call; if there is no drain limit, the other one counts from the last answer.
        """

    def hurry(self) -> None:  # noqa: B027  only models with processes have to
        """A request needs the version, which is not ready: try soon whatever may make it so."""

    @property
    def loading(self) -> str:
        """A clause about a version that is loading, with the time that has passed; ``""`` later."""
        return f"it is still loading, for {time.monotonic() - self._made_s:.0f} s" * (self.state is ModelState.LOADING)

    @property
    def load_stage(self) -> str:
        """The step at which the load is, as a clause."""
        return "its parts are awaited"

    # Figures

    @property
    def is_off(self) -> bool:
        """True if it does not serve because it, or a model it needs, was unloaded on request."""
        return self.reason == UNLOADED

    @property
    def load_failure(self) -> str:
        """The error text for a load request that could not load this version."""
        return f"version {self.version} is at {self.state.value} state: {self.reason};\n"

    @property
    def pending_count(self) -> int:
        """Number of requests that wait for an instance."""
        return 0

    @property
    def runs_in(self) -> frozenset[Model]:
        """The models whose instances serve its requests."""
        return frozenset((self,))

    # Requests

    def arena_of(self, name: str) -> TensorArena:
        """The memory for the input of this name."""
        return self.arena

    def owns(self, lease: Lease) -> bool:
        """True if this block is from such memory, so that a request can pass it to the model without a copy."""
        return isinstance(lease, ArenaLease) and self.arena.owns(lease)

    @abstractmethod
    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a validated request; the answer goes to ``on_response``, never before this returns.

        Raises:
            InferenceError: the request is refused; the caller must release its memory.
        """

    @abstractmethod
    def trim(self, now_ns: int) -> None:
        """Release unused memory; called about once a second."""


def not_ready(name: str, version: str, reason: str = "") -> NotServingError:
    """The error for an existing version that does not serve now."""
    text = f"Request for unknown model: '{name}' version {version} is not at ready state"
    return NotServingError(f"{text}: {reason}" if reason else text, ErrorCode.UNAVAILABLE)
