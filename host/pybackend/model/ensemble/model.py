"""A model that consists of other models: each request runs through its steps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from pybackend.apart import apart
from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest, RequestHolder
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.tensor import Lease
from pybackend.ipc.arena import TensorArena
from pybackend.model.cached_answers import version_digest, warn_without_cache
from pybackend.model.ensemble.parts import EnsembleBinding, PartError, find_parts
from pybackend.model.ensemble.run import EnsembleRequests
from pybackend.model.host import ModelHost, ModelRouter
from pybackend.model.model import UNLOADED, Health, Model, ModelState, not_ready
from pybackend.model.source import ModelSource
from pybackend.modelconfig.ensemble import steps_of, validate_connections, with_decoupled
from pybackend.modelconfig.labels import Labels, read_labels
from pybackend.modelconfig.signature import signature_of
from pybackend.modelconfig.validation import validate_cache

log = logging.getLogger(__name__)

_NOBODY = RequestHolder()


class PartsHealth(Health):
    """An ensemble serves while all its parts do."""

    _model: EnsembleModel

    @property
    def is_ready(self) -> bool:
        return self._model.state is ModelState.READY and all(part.health.is_ready for part in self._model.parts)

    @property
    def has_is_ready(self) -> bool:
        return any(part.health.has_is_ready for part in self._model.parts)

    async def _objection(self) -> str:
        parts = self._model.parts
        return _first_reason(parts, await asyncio.gather(*(part.health.not_ready_reason() for part in parts)))

    @property
    def own_objection(self) -> str:
        parts = self._model.parts
        return _first_reason(parts, [part.health.own_objection for part in parts])

    @property
    def keeps_askers_waiting(self) -> bool:
        return any(part.health.keeps_askers_waiting for part in self._model.parts)


def _first_reason(parts: Sequence[Model], reasons: Sequence[str]) -> str:
    """Why an ensemble is not ready, if one of its parts has a reason."""
    found = ((part, reason) for part, reason in zip(parts, reasons, strict=True) if reason)
    return next((f"its part '{part.full_name}' is not ready: {reason}" for part, reason in found), "")


class EnsembleModel(Model):
    """A version of an ensemble.

    It has no process. It is READY while its parts are, waits while they are not, and serves again once they are back.

    Attributes:
        part_names: the names of the models that it consists of.
    """

    may_recover = True

    def __init__(self, source: ModelSource, host: ModelHost, router: ModelRouter) -> None:
        super().__init__(source, host.arena_of(source))
        self.health = PartsHealth(self)
        self.hold = self._hold_with_parts
        self._configured = source.config
        self._source = source
        self._labels: Labels | None = None
        self._unread = ModelLoadError(f"the labels of ensemble '{source.full_name}' are not read yet")
        self._host = host
        self._router = router
        self._steps = steps_of(source.config)
        self.part_names = frozenset(step.model_name for step in self._steps)
        self._requests = EnsembleRequests(self, host, router)
        self._binding: EnsembleBinding | None = None
        self._fault: ModelLoadError | None = None

    async def load(self) -> None:
        started_ns = time.monotonic_ns()
        for warning in self._configured.warnings:
            log.warning("%s", warning)
        warn_without_cache(self._host.cache, self._configured)
        try:
            self._labels = await apart(
                f"the labels of '{self.full_name}'", read_labels, self._configured, self._source.directory
            )
        except ModelLoadError as error:
            self._unread = error.with_traceback(None)
        self.revise()
        self.statistics.load_duration_ns = time.monotonic_ns() - started_ns
        if self._fault is not None:
            raise self._fault

    def revise(self) -> bool:
        """Bind the versions that run the steps now, after a model was loaded or unloaded; True if anything changed.

        Its cached responses are then no longer used. Requests keep the versions with which they started.
        """
        if self.is_unloaded:
            return False
        before = (self.state, self._binding)
        try:
            self._bind()
        except ModelLoadError as error:
            self._fault = error.with_traceback(None)  # the traceback would keep unloaded models alive
            self.state, self.reason = ModelState.UNAVAILABLE, error.reason()
            down = isinstance(error, PartError) and error.may_come_back
            self.failure = InferenceError(error.message, ErrorCode.UNAVAILABLE) if down else None
        else:
            self._fault = self.failure = None
            self.state, self.reason, self.was_ready = ModelState.READY, "", True
        return before != (self.state, self._binding)

    def _bind(self) -> None:
        """Raises ModelLoadError: a part is unavailable or incompatible."""
        if self._labels is None:
            raise self._unread
        models = find_parts(self.full_name, self.namespace, self._steps, self._router)
        validate_connections(self._configured, [model.config for model in models])
        of_parts = {
            tensor: model.signature.outputs[inner].labels
            for step, model in zip(self._steps, models, strict=True)
            for inner, tensor in step.outputs.items()
        }
        self.signature = signature_of(self._configured, of_parts | self._labels, self._host.extras_of(self._configured))
        self._requests.signature = self.signature
        streams = any(model.config.decoupled for model in models)
        self.config = with_decoupled(self._configured) if streams else self._configured
        validate_cache(self.config, [each.config for model in models for each in model.runs_in])
        cache = self._host.cache
        if cache is not None and cache.stable_keys:
            self.digest = version_digest(self._source, self._configured, [model.digest for model in models])
        if self._requests.answers is not None:
            self._requests.answers.renew(self.digest)
        self._binding = EnsembleBinding(self._steps, models, self.signature)

    @property
    def load_failure(self) -> str:
        return super().load_failure if self._fault is None else f"{self._fault.message}\n"

    @property
    def is_unloaded(self) -> bool:
        """True if it is or is being unloaded: it will not serve again."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        self.state = ModelState.UNLOADING
        drained = await self.open_requests.drained_within(drain_timeout_s, lambda: not self._requests.runs)
        await self._requests.end()
        self.arena.close()
        self.state, self.reason = ModelState.UNAVAILABLE, UNLOADED
        return drained

    def hurry(self) -> None:
        for model in self.parts:
            model.hurry()

    def _hold_with_parts(self) -> Callable[[], None]:
        release, binding = self.open_requests.hold(), self._binding
        if binding is None:
            return release
        binding.enter()

        def release_all() -> None:
            binding.leave()
            release()

        return release_all

    @property
    def is_off(self) -> bool:
        return super().is_off or (isinstance(self._fault, PartError) and self._fault.of_unloaded)

    @property
    def parts(self) -> Sequence[Model]:
        """The versions that run its steps now."""
        return () if self._binding is None else self._binding.models

    @property
    def runs_in(self) -> frozenset[Model]:
        """The models in whose instances its steps finally run."""
        return frozenset(each for model in self.parts for each in model.runs_in)

    def arena_of(self, name: str) -> TensorArena:
        """The memory of the only step that uses the input, which saves a copy, or the ensemble's."""
        consumer = None if self._binding is None else self._binding.only_consumer(name)
        return self.arena if consumer is None else consumer[0].arena_of(consumer[1])

    def owns(self, lease: Lease) -> bool:
        return super().owns(lease) or any(model.owns(lease) for model in self.parts)

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        if self.state is ModelState.READY and self._binding is not None and not self._binding.is_current:
            self.revise()  # a part has failed permanently; another version may exist
        binding = self._binding
        if binding is None or not (self.state is ModelState.READY or self.open_requests.admits(request)):
            raise not_ready(self.name, self.version, self.reason)
        pending = PendingRequest(request, on_response, _NOBODY)  # it never waits: its run or its lookup holds it
        request.queued_ns = request.queued_ns or time.monotonic_ns()
        binding.enter()
        self.open_requests.enter(request)
        if self._requests.answers is None or request.regions is not None:
            self._requests.run(pending, binding)
        else:
            self._requests.look_up(pending, binding)
        return pending

    def trim(self, now_ns: int) -> None:
        self.arena.trim(now_ns, lambda _segment: None)
