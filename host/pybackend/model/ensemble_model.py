"""A model that consists of others: each request runs through its steps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import Lease
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.model.cached_answers import cached_answers, version_digest, warn_without_cache
from pybackend.model.door import ModelDoor
from pybackend.model.ensemble_binding import EnsembleBinding
from pybackend.model.ensemble_run import EnsembleRun
from pybackend.model.model import UNLOADED, Model, ModelState, not_ready
from pybackend.model.source import ModelSource
from pybackend.model.statistics import FailureReason
from pybackend.modelconfig.ensemble import EnsembleStep, most_inflight, steps_of, with_decoupled
from pybackend.modelconfig.ensemble_connections import validate_cache, validate_connections
from pybackend.modelconfig.labels import Labels, read_labels
from pybackend.modelconfig.signature import signature_of

log = logging.getLogger(__name__)


class EnsembleModel(Model):
    """A version of an ensemble.

    It has no process: it is READY while its parts are, waits for them while they are not, and serves again when they do.
    """

    may_recover = True

    def __init__(self, source: ModelSource, door: ModelDoor) -> None:
        super().__init__(source.name, source.version, source.config)
        self._configured = source.config
        self._source = source
        self._labels: Labels | None = None
        self._door = door
        self._steps = steps_of(source.config)
        self._most_inflight = most_inflight(source.config)
        self._binding: EnsembleBinding | None = None
        self._fault: ModelLoadError | None = None
        self._lacks_unloaded = False
        self._runs: dict[EnsembleRun, EnsembleBinding] = {}
        self._looked_up: dict[PendingRequest, EnsembleBinding] = {}
        self._arena = TensorArena(source.memory_limit_bytes, source.name)

    # Life

    async def load(self) -> None:
        """Check that all steps can be run; the model is READY afterwards.

        Raises:
            ModelLoadError: with the reason, which :attr:`reason` shows until the parts are such that it can serve.
        """
        started_ns = time.monotonic_ns()
        for warning in self._configured.warnings:
            log.warning("%s", warning)
        warn_without_cache(self._source.cache, self._configured)
        self.revise()
        self.statistics.load_duration_ns = time.monotonic_ns() - started_ns
        if self._fault is not None:
            raise self._fault

    def revise(self) -> bool:
        """See which versions run the steps now: some model was loaded or unloaded. True if that changes how this one serves.

        What was kept of its responses is not used any more. Requests that have begun go on with the versions that they began with.
        """
        if self.is_unloaded:
            return False
        before = (self.state, self._binding)
        try:
            self._bind()
        except ModelLoadError as error:
            self._fault = error.with_traceback(None)  # which would keep models that are gone by then
            self.state, self.reason = ModelState.UNAVAILABLE, error.reason()
        else:
            self._fault = None
            self.state, self.reason = ModelState.READY, ""
        return before != (self.state, self._binding)

    def _bind(self) -> None:
        """Raises ModelLoadError: a part is not available, or does not fit."""
        if self._labels is None:
            self._labels = read_labels(self._configured, self._source.directory)
        models: list[Model] = []
        self._lacks_unloaded = False
        for step in self._steps:
            try:
                models.append(self._door.find(step.model_name, step.model_version))
            except InferenceError:
                raise self._absence(step) from None
        validate_connections(self._configured, [model.config for model in models])
        self.signature = signature_of(self._configured, self._parts_labels(models) | self._labels)
        streams = any(model.config.decoupled for model in models)
        self.config = with_decoupled(self._configured) if streams else self._configured
        validate_cache(self.config, [each.config for model in models for each in model.runs_in])
        cache = self._source.cache
        if cache is not None and cache.stable_keys:
            self.digest = version_digest(self._source, self._configured, [model.digest for model in models])
        self._binding = EnsembleBinding(self._steps, models, self.signature, cached_answers(cache, self))

    def _parts_labels(self, models: Sequence[Model]) -> Labels:
        """What the elements of outputs are called by the steps that make them."""
        return {
            tensor: model.signature.outputs[inner].labels
            for step, model in zip(self._steps, models, strict=True)
            for inner, tensor in step.outputs.items()
        }

    def _absence(self, step: EnsembleStep) -> ModelLoadError:
        """Why a step cannot be run, or that several others are unknown, too."""
        part = step.model_name
        absences = {each.model_name: self._door.absence(each.model_name) for each in self._steps}
        unknown = sorted(name for name, absence in absences.items() if not absence.known)
        if unknown:
            text = f"ensemble {self.name} contains models that are not available or ambiguous: {', '.join(unknown)}"
            reasons = "; ".join(absences[name].reason for name in unknown if absences[name].reason)
            return ModelLoadError(f"{text} ({reasons})" if reasons else text, ErrorCode.INVALID_ARG)
        if step.model_version and self._serves_some_version(part):
            text = (
                f"ensemble '{self.name}' depends on '{part}' whose required version {step.model_version} is not loaded."
            )
            advice = (
                " A step without model_version means version 0; -1 is the newest." if step.model_version == "0" else ""
            )
            return ModelLoadError(text + advice, ErrorCode.INVALID_ARG)
        text = f"ensemble '{self.name}' depends on '{part}' which has no loaded version."
        absence = absences[part]
        self._lacks_unloaded = absence.on_purpose
        if absence.on_purpose:
            text += f" '{part}' was unloaded: load it again, or load '{self.name}', which loads its parts"
        else:
            text += f" Model '{part}' loading failed with error: {absence.reason}"
        return ModelLoadError(text, ErrorCode.INVALID_ARG)

    def _serves_some_version(self, name: str) -> bool:
        try:
            self._door.find(name)
        except InferenceError:
            return False
        return True

    @property
    def load_failure(self) -> str:
        """What is told to whoever asked to load it: the same for all versions."""
        return super().load_failure if self._fault is None else f"{self._fault.message}\n"

    @property
    def is_unloaded(self) -> bool:
        """True if it is, or is being: it will not serve again."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    @property
    def part_names(self) -> frozenset[str]:
        """The models that it consists of."""
        return frozenset(step.model_name for step in self._steps)

    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Wait for what was taken; True if it was answered in time."""
        self.state = ModelState.UNLOADING
        drained = await self._drained_within(drain_timeout_s)
        for answers in {binding.answers for binding in self._looked_up.values()}:
            if answers is not None:
                await answers.finish()
        for run in list(self._runs):
            what = f"the request to model '{self.name}' was still running when it was unloaded"
            run.abort(InferenceError(what, ErrorCode.UNAVAILABLE))
        self._arena.close()
        self.state, self.reason = ModelState.UNAVAILABLE, UNLOADED
        return drained

    @property
    def is_drained(self) -> bool:
        """True if every request is answered and no step runs any more for one that was given up."""
        return super().is_drained and not self._runs

    def hold(self) -> Callable[[], None]:
        """Keep this model, and its parts, able to answer other models' requests until the returned function is called."""
        let_go, binding = super().hold(), self._binding
        if binding is None:
            return let_go
        binding.enter()

        def let_all_go() -> None:
            binding.leave()
            let_go()

        return let_all_go

    # Health and figures

    @property
    def is_ready(self) -> bool:
        """True if every step could be run now."""
        return (
            self.state is ModelState.READY
            and self._binding is not None
            and all(model.is_ready for model in self._binding.models)
        )

    @property
    def is_off(self) -> bool:
        """True if it was unloaded, or one of its parts was."""
        return super().is_off or self._lacks_unloaded

    @property
    def has_is_ready(self) -> bool:
        """True if a part has a say in whether it is ready."""
        return self._binding is not None and any(model.has_is_ready for model in self._binding.models)

    async def not_ready_reason(self) -> str:
        """Why the model is not ready, by its parts' own word too; empty if it is."""
        binding = self._binding
        if self.state is not ModelState.READY or binding is None:
            return await super().not_ready_reason()
        reasons = await asyncio.gather(*(model.not_ready_reason() for model in binding.models))
        found = ((model, reason) for model, reason in zip(binding.models, reasons, strict=True) if reason)
        return next((f"its part '{model.name}' is not ready: {reason}" for model, reason in found), "")

    @property
    def runs_in(self) -> frozenset[Model]:
        """The models that its parts run in, in the end."""
        models = () if self._binding is None else self._binding.models
        return frozenset(each for model in models for each in model.runs_in)

    @property
    def input_memory_bytes(self) -> int:
        """Shared memory of inputs that several steps take."""
        return self._arena.total_bytes

    # Requests

    def lease(self, nbytes: int, name: str) -> Lease:
        """Memory for an input: that of the only step that takes it, so that it needs no copy, else the ensemble's own.

        Raises:
            InferenceError: UNAVAILABLE when a limit is reached.
        """
        taker = None if self._binding is None else self._binding.only_taker(name)
        if taker is None:
            return self._arena.lease(nbytes)
        model, inner_name = taker
        return model.lease(nbytes, inner_name)

    def owns(self, lease: Lease) -> bool:
        """True if this block is from :meth:`lease`."""
        if isinstance(lease, ArenaLease) and self._arena.owns(lease):
            return True
        return self._binding is not None and any(model.owns(lease) for model in self._binding.models)

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Run a validated request through the steps; it is answered through ``on_response``, never before this returns.

        Raises:
            InferenceError: the request cannot be taken; its memory is the caller's to release.
        """
        if self.state is ModelState.READY and self._binding is not None and not self._binding.is_current:
            self.revise()  # a part has given up, and there may be another version of it
        binding = self._binding
        if binding is None or not (self.state is ModelState.READY or self.is_held_for(request)):
            raise not_ready(self.name, self.version, self.reason)
        pending = PendingRequest(request, on_response, _never)
        request.queued_ns = time.monotonic_ns()
        binding.enter()
        self._take(pending)
        if binding.answers is None:
            self._run(pending, binding)
        else:
            self._looked_up[pending] = binding
            binding.answers.submit(pending)
        return pending

    def enqueue(self, pending: PendingRequest) -> None:
        """Have a request executed that the cache does not answer."""
        self._run(pending, self._looked_up.pop(pending))

    def _run(self, pending: PendingRequest, binding: EnsembleBinding) -> None:
        plan = binding.plan(pending.request.requested_outputs)
        run = EnsembleRun(self, self._door, plan, self._most_inflight, pending)
        self._runs[run] = binding
        run.start()

    def on_hit(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """A request is answered from the cache."""
        self._looked_up.pop(pending).leave()
        super().on_hit(pending, response)

    def on_dropped(self, pending: PendingRequest) -> None:
        """A request was cancelled before it was looked up."""
        self._looked_up.pop(pending).leave()
        super().on_dropped(pending)

    def on_response(self, run: EnsembleRun, response: InferenceResponse) -> None:
        """A request has got a response."""
        pending = run.pending
        pending.succeeded &= response.error is None
        if not response.final:
            self._deliver(pending, response)
            return
        if pending.succeeded:
            request = pending.request
            self.statistics.add_pass(request.batch_size, time.monotonic_ns() - request.queued_ns)
        else:
            reason = FailureReason.CANCELED if pending.cancelled else FailureReason.OTHER
            self.statistics.failures[reason] += 1
        self._answer(pending, response)

    def on_end(self, run: EnsembleRun) -> None:
        """Nothing happens for a request any more."""
        self._runs.pop(run).leave()
        self._wake()

    def trim(self, now_ns: int) -> None:
        """Give memory back that lay unused."""
        self._arena.trim(now_ns, lambda _segment: None)


def _never(_pending: PendingRequest) -> None:
    """A request to an ensemble never waits: its run is told that nobody waits for it, and whoever looks it up sees it."""
