"""A model version as the rest of the server sees it, whatever it consists of."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, failure
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import Lease
from pybackend.instance.model_instance import ModelInstance
from pybackend.model.statistics import FailureReason, ModelStatistics
from pybackend.modelconfig.schema import ModelConfig
from pybackend.modelconfig.signature import ModelSignature, signature_of

log = logging.getLogger(__name__)

UNLOADED = "unloaded"
"""The reason of a version that does not serve because nobody wants it to."""


class ModelState(Enum):
    """Where a version is in its life; the values are those of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Model(ABC):
    """A version that is being loaded, serves, or is being unloaded.

    Attributes:
        name: the model's name.
        version: its decimal version.
        config: as configured, and finished once it is loaded.
        signature: what requests are held against.
        state: where it is in its life.
        reason: why it is not available, ``""`` if it is.
        failure: what requests are told if it did serve once and cannot any more.
        statistics: what it has done so far.
        digest: tells its code and configuration from all others, on every server; empty where no cache asks for that.
    """

    may_recover: ClassVar[bool] = False
    """True if a version that could not be loaded may come to serve later, without being loaded anew."""

    def __init__(self, name: str, version: int, config: ModelConfig) -> None:
        self.name = name
        self.version = str(version)
        self.config = config
        self.signature: ModelSignature = signature_of(config)
        self.state = ModelState.LOADING
        self.reason = ""
        self.failure: InferenceError | None = None
        self.statistics = ModelStatistics()
        self.digest = b""
        self._open_requests = 0
        self._client_requests = 0
        self._holds = 0
        self._drain_is_over = False
        self._idle: asyncio.Event | None = None

    @property
    def environment(self) -> Mapping[str, Any] | None:
        """For its metadata, what there is to say about the Python that it brings; None if it runs on the server's."""
        return None

    @property
    def confinement(self) -> Mapping[str, Any] | None:
        """What confines its processes, for whoever looks at it: ``level`` and ``not_in_force``; None if nothing does."""
        return None

    # Life

    @abstractmethod
    async def load(self) -> None:
        """Make the model READY.

        Raises:
            ModelLoadError: with the reason, which :attr:`reason` shows from then on.
        """

    @abstractmethod
    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Answer what was taken and free everything; True if nothing had to be cut short.

        Args:
            drain_timeout_s: how long requests may take that were taken before.
            finalize_timeout_s: how long the model's own end may take. Both times count from the call; this one from the
                last answer if there is no limit for those.
        """

    async def clients_answered_within(self, timeout_s: float | None) -> bool:
        """Wait until every request is answered that is no other model's; False if they are not in time."""
        return await self._until(lambda: not self._client_requests, timeout_s)

    async def _drained_within(self, timeout_s: float | None) -> bool:
        """Wait until every request is answered, and nobody holds the model; False if that takes too long."""
        drained = await self._until(lambda: self.is_drained, timeout_s)
        self._drain_is_over = True
        return drained

    @property
    def is_drained(self) -> bool:
        """True if no request is open, and none will come once the model is being unloaded."""
        return not self._open_requests and not self._holds

    def hold(self) -> Callable[[], None]:
        """Keep the model, while it is being unloaded, able to answer other models' requests.

        Returns:
            What ends that; to be called once.
        """
        self._holds += 1
        return self._let_go

    def _let_go(self) -> None:
        self._holds -= 1
        self._wake()

    def is_held_for(self, request: InferenceRequest) -> bool:
        """True if this request is to be taken although the model does not serve any more."""
        return request.is_inner and self._holds > 0 and not self._drain_is_over

    async def _until(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    self._idle = self._idle or asyncio.Event()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    # Health and figures

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """True if requests are taken and everything is alive; what the model itself says is asked elsewhere."""

    @property
    def is_off(self) -> bool:
        """True if it does not serve because somebody unloaded what it takes to serve."""
        return self.reason == UNLOADED

    @property
    def load_failure(self) -> str:
        """What is told to whoever asked to load a version that could not be loaded."""
        return f"version {self.version} is at {self.state.value} state: {self.reason};\n"

    @property
    def has_is_ready(self) -> bool:
        """True if the model has a say in whether it is ready."""
        return False

    async def not_ready_reason(self) -> str:
        """Why the model is not ready, by its own word too if it has one; empty if it is."""
        return "" if self.is_ready else self.reason or self.state.value.lower()

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return 0

    @property
    def instances(self) -> Sequence[ModelInstance]:
        """All instances, in configured order; none if the model runs in others."""
        return ()

    @property
    def active_instances(self) -> Sequence[ModelInstance]:
        """Those that take requests."""
        return ()

    @property
    def runs_in(self) -> frozenset[Model]:
        """The models whose instances its requests need."""
        return frozenset((self,))

    @property
    def input_memory_bytes(self) -> int:
        """Shared memory that inputs of this model hold or keep warm."""
        return 0

    # Requests

    @abstractmethod
    def lease(self, nbytes: int, name: str) -> Lease:
        """Input memory for the input of this name, whose bytes are about to arrive.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """

    def owns(self, lease: Lease) -> bool:
        """True if this block is from :meth:`lease`, so that a request may hand it over as it is."""
        return False

    @abstractmethod
    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a validated request; it is answered through ``on_response``, never before this returns.

        Raises:
            InferenceError: the request cannot be taken; its memory is the caller's to release.
        """

    @abstractmethod
    def trim(self, now_ns: int) -> None:
        """Give memory back that lay unused; called about once a second."""

    def _take(self, pending: PendingRequest) -> None:
        """Count a request that is to be answered."""
        self._open_requests += 1
        if not pending.request.is_inner:
            self._client_requests += 1

    def _deliver(self, pending: PendingRequest, response: InferenceResponse) -> None:
        try:
            pending.on_response(response)
        except Exception:  # one receiver's fault must not cost the others their answers
            log.exception("the receiver of a response of model '%s' failed", self.name)
            response.release()

    def _answer(self, pending: PendingRequest, response: InferenceResponse) -> None:
        self._open_requests -= 1
        if not pending.request.is_inner:
            self._client_requests -= 1
        if pending.paused:
            pending.resume()  # whatever runs it need not remember that
        pending.answered = True
        self._deliver(pending, response)
        self._wake()

    def on_hit(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """A request is answered from the cache."""
        pending.request.release()
        self.statistics.success_count += 1
        self.statistics.success_ns += time.monotonic_ns() - pending.request.queued_ns
        self._answer(pending, response)

    def on_dropped(self, pending: PendingRequest) -> None:
        """A request was cancelled before it was looked up."""
        self._drop_cancelled(pending)

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """Requests that were taken are not executed after all: they are answered."""
        self._fail(batch, error, FailureReason.REJECTED)

    def _fail(self, batch: Sequence[PendingRequest], error: InferenceError, reason: FailureReason) -> None:
        for pending in batch:
            pending.request.release()
            if pending.is_filler:
                continue
            self.statistics.failures[reason] += 1
            self._answer(pending, failure(pending.request, self.version, error))

    def _drop_cancelled(self, pending: PendingRequest) -> None:
        pending.answered, pending.succeeded = True, False
        self.statistics.failures[FailureReason.CANCELED] += 1
        pending.request.release()
        response = failure(pending.request, self.version, CANCELLED)
        asyncio.get_running_loop().call_soon(self._answer, pending, response)

    def _wake(self) -> None:
        """Whoever waits for the model's end sees whether that has come."""
        if self._idle is not None and not (self._open_requests and self._client_requests):
            self._idle.set()
            self._idle = None


def not_ready(name: str, version: str, reason: str = "") -> InferenceError:
    """The error for a version that is there but does not serve now."""
    text = f"Request for unknown model: '{name}' version {version} is not at ready state"
    return InferenceError(f"{text}: {reason}" if reason else text, ErrorCode.UNAVAILABLE)
