"""A model whose code runs in stub processes: instances, queue, memory and counters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pybackend.environment.provider import ModelEnvironment
from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import Lease
from pybackend.instance.execution import Execution
from pybackend.instance.launch import StubSettings
from pybackend.instance.launcher import StubLauncher
from pybackend.instance.limited_instance import LimitedInstance
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.owner import LostInstance
from pybackend.instance.plan import InstancePlan, InstanceState
from pybackend.instance.readiness import READINESS_LIMIT_S
from pybackend.instance.services import StubServices
from pybackend.instance.session import unhealthy
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.model.cached_answers import CachedAnswers, cached_answers, version_digest, warn_without_cache
from pybackend.model.environment import open_environment
from pybackend.model.model import UNLOADED, Model, ModelState, not_ready
from pybackend.model.output_check import output_error
from pybackend.model.sandbox import open_sandbox
from pybackend.model.source import ModelSource
from pybackend.model.statistics import FailureReason
from pybackend.modelconfig.instances import InstanceSpec, instances
from pybackend.modelconfig.labels import read_labels
from pybackend.modelconfig.loader import finish_config, planned_instances
from pybackend.modelconfig.options import ModelOptions, options_of, start_options_of
from pybackend.modelconfig.rate_limits import rate_limit_of
from pybackend.modelconfig.sequences import hidden_outputs, is_iterative
from pybackend.modelconfig.signature import signature_of
from pybackend.modelconfig.warmup import WarmupSample, warmup_samples
from pybackend.sandbox.model_sandbox import ModelSandbox
from pybackend.scheduler.choice import make_scheduler
from pybackend.scheduler.scheduler import BatchReason, Scheduler
from pybackend_wire.messages import INLINE_BYTES, DebuggerPoint

log = logging.getLogger(__name__)


class PythonModel(Model):
    """A version that runs in stub processes.

    Attributes:
        options: what its parameters ask of this server.
        sandbox: what confines its processes, None if nothing does.
    """

    def __init__(self, source: ModelSource, launcher: StubLauncher, services: StubServices) -> None:
        super().__init__(source.name, source.version, source.config)
        self.options = ModelOptions()
        self._source = source
        self._launcher = launcher
        self._services = services
        self._instances: list[ModelInstance] = []
        self._active: list[ModelInstance] = []
        self._arena = TensorArena(source.memory_limit_bytes, source.name)
        self._scheduler: Scheduler | None = None
        self._answers: CachedAnswers | None = None
        self._all_failed = False
        self._hidden_outputs: frozenset[str] = frozenset()
        self._debugger_points: list[DebuggerPoint] = []
        self._warmup: tuple[WarmupSample, ...] = ()
        self._environment: ModelEnvironment | None = None
        self.sandbox: ModelSandbox | None = None

    # Life

    async def load(self) -> None:
        """Start, complete and initialise the model; it is READY afterwards.

        Raises:
            ModelLoadError: with the reason, which :attr:`reason` shows from then on.
        """
        started_ns = time.monotonic_ns()
        try:
            await self._load()
        except (ModelLoadError, InferenceError) as error:
            await asyncio.gather(*(instance.stop(finalize_timeout_s=0) for instance in self._instances))
            await self._forget_instances()
            failed = ModelLoadError(error.message, error.code)
            self.state, self.reason = ModelState.UNAVAILABLE, failed.reason()
            raise failed from error
        self.statistics.load_duration_ns = time.monotonic_ns() - started_ns
        self.state, self.reason = ModelState.READY, ""

    async def _load(self) -> None:
        source = self._source
        source.check_model_file()
        if source.environments is not None and source.environment_path is not None:
            self._environment = await open_environment(source.environments, source.environment_path)
            log.info("model '%s' runs on %s", self.name, self._environment.interpreter.describe())
        planned = planned_instances(source.config, source.gpu_count)
        name = planned[0].name if planned else f"{source.name}_0"
        self.sandbox = await open_sandbox(source, self._environment, planned)
        if source.debugger is not None:
            self._debugger_points = source.debugger.take([spec.name for spec in planned] or [name])
        first = self._instance(name)
        self._instances.append(first)
        config_json = source.config.to_json() if source.auto_complete else None
        completed = await first.load(self._settings(name, 0, planned[0].policy_name if planned else ""), config_json)
        self.config = finish_config(source.config, completed, source.gpu_count)
        self.signature = signature_of(self.config, read_labels(self.config, source.directory))
        self.options = options_of(self.config)
        self._hidden_outputs = hidden_outputs(self.config)
        for warning in self.config.warnings:
            log.warning("%s", warning)
        cache = self._source.cache
        if cache is not None and cache.stable_keys:
            self.digest = await asyncio.to_thread(version_digest, source, self.config)
        warn_without_cache(cache, self.config)
        self._answers = cached_answers(cache, self)
        self._warmup = await asyncio.to_thread(warmup_samples, self.config, self.signature, source.directory)
        specs = instances(self.config)
        for spec in specs[1:]:
            self._instances.append(self._instance(spec.name))
        self._limit_instances(specs)
        if self.sandbox is not None:
            await asyncio.to_thread(self.sandbox.prepare, len(specs))
        plans = [self._plan(spec, index) for index, spec in enumerate(specs)]
        outcomes = await asyncio.gather(
            *(instance.initialize(plan) for instance, plan in zip(self._instances, plans, strict=True)),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        self._active = [instance for instance, spec in zip(self._instances, specs, strict=True) if not spec.passive]
        self._scheduler = make_scheduler(self.config, self._active, self, source.directory)

    def _limit_instances(self, specs: Sequence[InstanceSpec]) -> None:
        for instance, spec in zip(self._instances, specs, strict=True):
            limit = rate_limit_of(self.config, spec.group, spec.device_id)
            if isinstance(instance, LimitedInstance) and self._source.resources is not None and limit is not None:
                instance.limit_by(self._source.resources, limit)

    def _instance(self, name: str) -> ModelInstance:
        make = ModelInstance if self._source.resources is None else LimitedInstance
        return make(name, self.version, self._launcher, self, self._services)

    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Answer what was taken, finalize all instances and free everything; True if nothing had to be cut short.

        Args:
            drain_timeout_s: how long requests may take that were taken before.
            finalize_timeout_s: how long ``finalize`` may take. Both times count from the call; this one from the last
                answer if there is no limit for those.
        """
        began_s = time.monotonic()
        self.state = ModelState.UNLOADING
        drained = await self._drained_within(drain_timeout_s)
        if not drained:
            self._reject_waiting()
        if finalize_timeout_s is not None and drain_timeout_s is not None:
            finalize_timeout_s = max(0.0, finalize_timeout_s - (time.monotonic() - began_s))
        ended = await asyncio.gather(*(instance.stop(finalize_timeout_s) for instance in self._instances))
        if self._answers is not None:
            await self._answers.finish()
        # What a killed stub was sent and had not begun waits for another one, which does not come.
        self._reject_waiting()
        await self._forget_instances()
        if self._scheduler is not None:
            self._scheduler.close()
        self._arena.close()
        self.state, self.reason = ModelState.UNAVAILABLE, UNLOADED
        return drained and all(ended)

    async def _forget_instances(self) -> None:
        self._instances.clear()
        if self._source.debugger is not None:
            self._source.debugger.give_back(self._debugger_points)
            self._debugger_points = []
        if self.sandbox is not None:
            await self.sandbox.close()
        if self._environment is not None:
            self._environment.release()
            self._environment = None

    def _settings(self, instance_name: str, index: int, policy_name: str) -> StubSettings:
        source = self._source
        sandbox = None if self.sandbox is None else self.sandbox.of_instance(index)
        return StubSettings(
            instance_name=instance_name,
            model_name=source.name,
            model_file=str(source.model_file),
            version_directory=str(source.version_directory),
            output_memory_limit_bytes=source.memory_limit_bytes,
            of_backend=source.backend_file is not None,
            debugger=self._debugger_points[index] if self._debugger_points else None,
            cores=source.host_policies.get(policy_name, frozenset()),
            start=start_options_of(source.config),
            environment=None if self._environment is None else self._environment.environment,
            confinement=None if sandbox is None else sandbox.confinement,
            sandbox=sandbox,
        )

    def _plan(self, spec: InstanceSpec, index: int) -> InstancePlan:
        config, options = self.config, self.options
        return InstancePlan(
            settings=self._settings(spec.name, index, spec.policy_name),
            args={
                "model_config": config.to_json(),
                "model_instance_kind": spec.kind,
                "model_instance_name": spec.name,
                "model_instance_device_id": str(spec.device_id),
                "model_repository": str(self._source.directory),
                "model_version": self.version,
                "model_name": self.name,
            },
            output_names=(*self.signature.outputs, *self._hidden_outputs),
            copy_inputs=options.copy_inputs,
            decoupled=config.decoupled,
            concurrency=1 if config.decoupled or is_iterative(config) else options.concurrency,
            execution_limit_s=0 if self._debugger_points else options.execution_limit_s,
            readiness_limit_s=None if self._debugger_points else READINESS_LIMIT_S,
            restart_limit=options.restart_limit,
            cancels_calls=options.cancels_calls,
            reschedules=is_iterative(config),
            warmup=self._warmup,
        )

    # Health and figures

    @property
    def environment(self) -> Mapping[str, Any] | None:
        return None if self._environment is None else self._environment.facts()

    @property
    def confinement(self) -> Mapping[str, Any] | None:
        """What confines its processes; None if nothing does."""
        return None if self.sandbox is None else self.sandbox.summary()

    @property
    def is_ready(self) -> bool:
        """True if requests are taken and every instance is alive; what the model itself says is asked elsewhere."""
        return self.state is ModelState.READY and all(
            instance.state is InstanceState.READY for instance in self._instances
        )

    @property
    def has_is_ready(self) -> bool:
        """True if the model has a say in whether it is ready."""
        return any(instance.has_is_ready for instance in self._instances)

    async def not_ready_reason(self) -> str:
        """Why the model is not ready; empty if it is. Every instance that has an ``is_ready`` is asked."""
        if self.state is not ModelState.READY:
            return self.reason or self.state.value.lower()
        reasons = await asyncio.gather(*(instance.not_ready_reason() for instance in self._instances))
        return next((reason for reason in reasons if reason), "")

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return 0 if self._scheduler is None else len(self._scheduler)

    @property
    def instances(self) -> Sequence[ModelInstance]:
        """All instances, in configured order."""
        return self._instances

    @property
    def active_instances(self) -> Sequence[ModelInstance]:
        """Those that take requests."""
        return self._active

    @property
    def input_memory_bytes(self) -> int:
        """Shared memory that inputs of this model hold or keep warm."""
        return self._arena.total_bytes

    # Requests

    def lease(self, nbytes: int, name: str = "") -> ArenaLease:
        """Input memory for a tensor whose bytes are about to arrive.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """
        return self._arena.lease(nbytes)

    def owns(self, lease: Lease) -> bool:
        """True if this block is from :meth:`lease`."""
        return isinstance(lease, ArenaLease) and self._arena.owns(lease)

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a validated request; it is answered through ``on_response``, never before this returns.

        Raises:
            InferenceError: the request cannot be taken; its memory is the caller's to release.
        """
        if self._scheduler is None or not (self.state is ModelState.READY or self.is_held_for(request)):
            if self.failure is not None:
                raise self.failure.again()
            raise not_ready(self.name, self.version)
        if self._all_failed:
            raise self._no_instance()
        for tensor in request.inputs:
            data = tensor.data
            if tensor.lease is None and len(data) > INLINE_BYTES:  # type: ignore[arg-type]  # bytes have arrived
                lease = self._arena.lease(len(data))  # type: ignore[arg-type]
                lease.view[:] = data  # type: ignore[assignment]
                tensor.lease, tensor.data = lease, lease.view
        if self.signature.has_reshape:
            for tensor in request.inputs:
                tensor.shape = self.signature.shape_for_model(self.signature.inputs[tensor.name], tensor.shape)
        pending = PendingRequest(request, on_response, self._cancel)
        request.queued_ns = time.monotonic_ns()
        if self._answers is None:
            self._scheduler.enqueue(pending)
        else:
            self._answers.submit(pending)
        self._take(pending)
        return pending

    def enqueue(self, pending: PendingRequest) -> None:
        """Have a request executed that the cache does not answer.

        Raises:
            InferenceError: it is not taken.
        """
        assert self._scheduler is not None
        self._scheduler.enqueue(pending)

    def on_executed(self, execution: Execution, responses: Sequence[InferenceResponse | None]) -> None:
        """An instance has returned from ``execute``."""
        statistics = self.statistics
        now_ns = time.monotonic_ns()
        succeeded = executed = queued_ns = 0
        for pending, response in zip(execution.pending, responses, strict=True):
            if pending.is_filler:
                _forget(pending, response)
                continue
            if response is None:
                if pending.answered and pending.succeeded:
                    statistics.add_success(pending.request, execution.times, now_ns)
                continue
            self._finish(pending, response)
            if response.error is not None:
                statistics.failures[FailureReason.BACKEND] += 1
            else:
                request = pending.request
                executed += request.batch_size
                succeeded += 1
                queued_ns += request.queued_ns
            self._answer(pending, response)
        if succeeded:
            statistics.add_successes(succeeded, executed, queued_ns, execution.times, now_ns)
        if succeeded or None in responses:
            statistics.execution_count += 1
        assert self._scheduler is not None
        self._scheduler.dispatch()

    def on_response(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        """A response sender has sent a response."""
        if pending.is_filler:
            _forget(pending, response)
            return
        if not response.empty:
            self._finish(pending, response)
        pending.succeeded &= response.error is None
        if not response.final:
            self._deliver(pending, response)
            return
        if not pending.succeeded:
            self.statistics.failures[FailureReason.BACKEND] += 1
        elif execution.times.infer_end_ns:  # else it counts once its execution is over
            self.statistics.add_success(pending.request, execution.times, time.monotonic_ns())
        self._answer(pending, response)

    def on_rescheduled(self, again: list[PendingRequest]) -> None:
        """The model wants to see these once more."""
        assert self._scheduler is not None
        for pending in self._without_cancelled(again):
            self._scheduler.reschedule(pending)

    def on_handed_back(self, waiting: list[PendingRequest]) -> None:
        """An instance is busy for long: what it was sent ahead goes to another one, or waits here."""
        assert self._scheduler is not None
        self._scheduler.requeue(self._without_cancelled(waiting))
        self._scheduler.dispatch()

    def _without_cancelled(self, waiting: list[PendingRequest]) -> list[PendingRequest]:
        """Those that somebody still waits for; the others are answered."""
        for pending in waiting:
            if pending.cancelled:
                self._drop_cancelled(pending)
        return [pending for pending in waiting if not pending.cancelled]

    def on_lost(self, instance: LostInstance, begun: list[PendingRequest], waiting: list[PendingRequest]) -> None:
        """A stub died: what it had begun fails (running it again could do its work twice), the rest waits on."""
        error = InferenceError(unhealthy(instance.name, instance.death_cause))
        self._fail(begun, error, FailureReason.BACKEND)
        if self._scheduler is not None:
            self._scheduler.requeue(self._without_cancelled(waiting))
            self._scheduler.on_lost(instance, error)
            self._scheduler.dispatch()

    def on_rejected(self, pending: PendingRequest, error: InferenceError) -> None:
        """The scheduler gives a request up."""
        self._fail([pending], error, FailureReason.REJECTED)

    def on_batch(self, reason: BatchReason) -> None:
        """The scheduler has put a batch together."""
        self.statistics.batches[reason] += 1

    def on_available(self) -> None:
        """An instance came back, or could not be brought back."""
        if self._scheduler is None:
            return
        self._all_failed = all(
            instance.state in {InstanceState.FAILED, InstanceState.GIVEN_UP} for instance in self._active
        )
        if all(instance.state is InstanceState.GIVEN_UP for instance in self._active):
            self.failure = self._no_instance()
            last_words = self._active[0].output.last_words  # for operators: they may hold what other clients sent
            self.state, self.reason = ModelState.UNAVAILABLE, f"Internal: {self.failure.message}{last_words}"
        if self._all_failed:
            self._reject(self._no_instance())
        else:
            self._scheduler.dispatch()

    def trim(self, now_ns: int) -> None:
        """Give memory back that lay unused; called about once a second."""
        dropped: list[int] = []
        self._arena.trim(now_ns, dropped.append)
        for instance in self._instances:
            instance.trim(dropped, now_ns)

    def _reshape_outputs(self, response: InferenceResponse) -> None:
        for output in response.outputs:
            tensor = self.signature.outputs.get(output.name)
            if tensor is not None:
                output.shape = self.signature.shape_for_client(tensor, output.shape)

    def _check_outputs(self, pending: PendingRequest, response: InferenceResponse) -> None:
        outputs = [output for output in response.outputs if output.name not in self._hidden_outputs]
        response.error = output_error(outputs, self.signature, pending.request.batch_size)
        if response.error is not None:
            response.release()

    def _cancel(self, pending: PendingRequest) -> None:
        """Drop a request that waits; its sender is answered on the loop's next turn, as for every request."""
        assert self._scheduler is not None
        if self._answers is not None and self._answers.concerns(pending):
            return  # whoever looks it up sees that it is cancelled
        self._scheduler.remove(pending)
        self._drop_cancelled(pending)

    def _no_instance(self) -> InferenceError:
        cause = self._active[0].trouble
        return InferenceError(
            f"model '{self.name}' has no instance that can serve: its process could not be restarted. {cause}",
            ErrorCode.UNAVAILABLE,
        )

    def _reject_waiting(self) -> None:
        what = f"the request to model '{self.name}' was still waiting when the server stopped"
        self._reject(InferenceError(what, ErrorCode.UNAVAILABLE))

    def _reject(self, error: InferenceError) -> None:
        if self._scheduler is not None:
            self.on_refused(self._scheduler.take_all(), error)

    def _finish(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Give a model's response the form that clients expect."""
        if self.signature.has_reshape:
            self._reshape_outputs(response)
        if self.options.validate_outputs and response.error is None:
            self._check_outputs(pending, response)


def _forget(filler: PendingRequest, response: InferenceResponse | None) -> None:
    """Drop the response to a request that nobody has sent."""
    if response is not None:
        filler.answered |= response.final
        response.release()
