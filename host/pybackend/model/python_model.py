"""A model whose code runs in stub processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError, UnknownSequenceError
from pybackend.inference.pending import PendingRequest, RunningExecution
from pybackend.inference.region import source_of
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.tensor import Lease
from pybackend.instance.executor import InstanceExecutor
from pybackend.instance.model_instance import ModelInstance
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.model.cached_answers import cached_answers
from pybackend.model.executions import Executions, ModelQueue
from pybackend.model.host import ModelHost
from pybackend.model.latencies import FirstResponses, LatencySummaries, first_response_bounds_ms
from pybackend.model.model import UNLOADED, Model, ModelState, not_ready
from pybackend.model.output_check import output_form
from pybackend.model.processes import ModelProcesses
from pybackend.model.source import ModelSource
from pybackend.model.statistics import FailureReason
from pybackend.model.version_loader import CompletedVersion, VersionLoader
from pybackend.modelconfig.loader import planned_instances
from pybackend.modelconfig.signature import ModelSignature
from pybackend.observability.log_lines import about_model
from pybackend.sandbox.model_sandbox import ModelSandbox
from pybackend.scheduler.choice import make_scheduler
from pybackend.scheduler.scheduler import Scheduler
from pybackend.scheduler.sequence_batcher import SequenceBatcher
from pybackend_wire.messages import INLINE_BYTES

log = logging.getLogger(__name__)


class VersionSequences:
    """The active sequences of one version, and of those that it replaces.

    Attributes:
        predecessors: the versions that are being replaced and have active sequences.
    """

    def __init__(self) -> None:
        self.predecessors: Sequence[PythonModel] = ()
        self._sequencer: SequenceBatcher | None = None
        self._is_replaced = False

    def serve(self, scheduler: Scheduler) -> None:
        """The version is loaded."""
        self._sequencer = scheduler if isinstance(scheduler, SequenceBatcher) else None

    @property
    def are_active(self) -> bool:
        """True while further requests of a sequence may come."""
        return self._sequencer is not None and self._sequencer.has_active

    def begun_at(self, request: InferenceRequest) -> PythonModel | None:
        """The predecessor on which a request's sequence began, None for any other request."""
        return next((model for model in self.predecessors if model.sequences.continues(request)), None)

    def continues(self, request: InferenceRequest) -> bool:
        """True if a request belongs to a sequence that may end here although the version was replaced."""
        sequencer = self._sequencer
        return sequencer is not None and self._is_replaced and sequencer.continues(request.correlation_id)

    def run(self, request: InferenceRequest) -> bool:
        """True if a request belongs to an active sequence of this version, or of one that it replaces."""
        sequencer = self._sequencer
        if sequencer is not None and sequencer.continues(request.correlation_id):
            return True
        return self.begun_at(request) is not None

    def keep(self) -> None:
        """The version is being replaced: its sequences may go on until :meth:`ended_within` returns."""
        self._is_replaced = True

    async def ended_within(self, timeout_s: float | None, version: str) -> None:
        """Wait for the end of the sequences of a version that was replaced; return at once for any other.

        Args:
            timeout_s: the time limit, None for no limit. Sequences that have not ended by then are cut short.
            version: names the version in the log.
        """
        sequencer = self._sequencer
        if sequencer is not None and self._is_replaced and sequencer.has_active:
            ended = asyncio.Event()
            sequencer.on_all_ended = ended.set
            try:
                async with asyncio.timeout(timeout_s):
                    await ended.wait()
            except TimeoutError:
                log.warning(
                    "%s was replaced %.1f s ago, and its sequences that go on are cut short", version, timeout_s
                )
            finally:
                sequencer.on_all_ended = None
        self._is_replaced = False


@dataclass(frozen=True)
class Rehearsal:
    """The outcome of preparing a version without running its code.

    Attributes:
        process_count: number of its processes.
        environment: metadata about the Python environment that it brings; None if it runs on the server's Python.
        level: of its sandbox, None without one.
        missing: layers of the sandbox that cannot be applied, with reasons, as far as that is known without a process.
    """

    process_count: int
    environment: Mapping[str, Any] | None
    level: str | None
    missing: Mapping[str, str]


@dataclass(frozen=True)
class _Serving:
    """A loaded version.

    Attributes:
        version: with its completed configuration.
        loader: loaded it, or changed its instances last.
        instances: those that accept requests; shared with the queue and the executions.
        executors: of these instances; shared with the scheduler.
    """

    version: CompletedVersion
    loader: VersionLoader
    instances: list[ModelInstance]
    executors: list[InstanceExecutor]


class PythonModel(Model):
    """A version that runs in stub processes: manages its life cycle, and queues its requests.

    Attributes:
        sequences: those that have begun here, or on a version that this one replaces.
    """

    def __init__(self, source: ModelSource, host: ModelHost) -> None:
        super().__init__(source.name, source.version, source.config, source.namespace)
        self._source = source
        self._host = host
        self._arena = TensorArena(host.settings.memory_limit_bytes, source.full_name, host.tensor_budget)
        self._executions = Executions(
            self.name, self.version, self.statistics, self.open_requests, self._arena, self._on_given_up, self._on_back
        )
        self._processes = ModelProcesses(source, host, self._executions)
        self._queue: ModelQueue | None = None
        self._views_regions = False
        self._states: frozenset[str] = frozenset()
        if host.metrics.summary_latencies:
            self.statistics.summaries = LatencySummaries()
        self._serving: _Serving | None = None
        self.sequences = VersionSequences()

    # Life

    async def load(self) -> None:
        """Start, complete and initialise the model; it is READY afterwards.

        Raises:
            ModelLoadError: loading failed; :attr:`reason` then shows the reason.
        """
        started_ns = time.monotonic_ns()
        try:
            await self._load()
        except (ModelLoadError, InferenceError) as error:
            await self._processes.stop(finalize_timeout_s=0)
            await self._processes.close()
            failed = ModelLoadError(error.message, error.code)
            self.state, self.reason = ModelState.UNAVAILABLE, failed.reason()
            raise failed from error
        self.statistics.load_duration_ns = time.monotonic_ns() - started_ns
        self.state, self.reason, self.was_ready = ModelState.READY, "", True

    async def rehearse(self) -> Rehearsal:
        """Do what :meth:`load` does before any code of the model runs, and release everything again.

        Raises:
            ModelLoadError: loading would fail; the text gives the reason.
        """
        try:
            planned = await VersionLoader(self._source, self._host, self._processes).open()
            if self.sandbox is None:
                return Rehearsal(max(1, len(planned)), self.environment, None, {})
            missing = self.sandbox.of_instance(0).confinement.missing
            return Rehearsal(max(1, len(planned)), self.environment, self.sandbox.level, missing)
        finally:
            await self._processes.close()
            self._arena.close()

    async def _load(self) -> None:
        host, executions = self._host, self._executions
        loader = VersionLoader(self._source, host, self._processes)
        version = await loader.complete()
        self.config, self.signature, self.digest = version.config, version.signature, version.digest
        path = host.path_to_sender
        if host.metrics.histogram_latencies:
            first = self.statistics.first_responses = FirstResponses(first_response_bounds_ms(version.config))
            path = first.stage(path)
        answers, path = cached_answers(host.cache, version.config, version.digest, executions, path)
        self._views_regions = version.options.views_regions
        self._states = frozenset(() if version.states is None else version.states.output_names)
        form = output_form(version.signature, version.hidden_outputs, validates=version.options.validate_outputs)
        instances = await loader.initialize(version)
        executors = [instance.executor for instance in instances]
        scheduler, path = make_scheduler(version.config, executors, executions, version.states, path)
        executions.serve(scheduler, instances, form, path, decoupled=version.config.decoupled)
        self._queue = ModelQueue(scheduler, answers, instances, executions)
        self.sequences.serve(scheduler)
        self._serving = _Serving(version, loader, instances, executors)

    def can_change_instances(self, source: ModelSource) -> bool:
        """True if :meth:`change_instances` can bring it up to date with a source of which only the instances differ."""
        if self._serving is None or self.state is not ModelState.READY or self._processes.is_debugged:
            return False
        planned = planned_instances(source.config, self._host.gpu_count)
        # The sandbox is made for kinds of instances: those on a GPU reach its devices.
        return {spec.kind for spec in planned} <= {
            spec.kind for spec in planned_instances(self.config, self._host.gpu_count)
        }

    async def change_instances(self, source: ModelSource) -> None:
        """Start and end instances as another configuration says. The others go on, with the configuration they have.

        Those that have nothing to do have ended when this returns; busy ones end when they have answered what they have begun,
        and the sequences at them have ended.

        Raises:
            ModelLoadError: an instance could not be started, and nothing has changed.
        """
        serving = self._serving
        assert serving is not None
        assert self._queue is not None
        try:
            loader = VersionLoader(source, self._host, self._processes, serving.loader.warnings)
            version = replace(serving.version, config=loader.renewed(serving.version.config))
            every, serves = await loader.change_instances(serving.version, version)
        except InferenceError as error:
            raise ModelLoadError(error.message, error.code) from error
        # The scheduler, the queue and the executions share these lists.
        serving.instances[:] = serves
        serving.executors[:] = [instance.executor for instance in serves]
        self._queue.scheduler.change_instances()
        self._serving = replace(serving, version=version, loader=loader)
        self._source, self.config = source, version.config
        self._executions.on_available()
        await self._processes.replace_instances(every, self._queue.scheduler.keeps)

    def _on_given_up(self, failure: InferenceError, last_words: str) -> None:
        """Every instance was given up."""
        self.failure = failure
        if self.state is not ModelState.UNLOADING:
            self.state, self.reason = ModelState.UNAVAILABLE, f"Internal: {failure.message}{last_words}"
            self._host.services.on_turn(self.full_name)

    def _on_back(self) -> None:
        """An instance that was given up serves again."""
        self.failure = None
        if self.state is ModelState.UNAVAILABLE:
            self.state, self.reason = ModelState.READY, ""
            about = about_model(self.full_name, self.version)
            log.info("'%s' version %s serves again", self.full_name, self.version, extra=about)
            self._host.services.on_turn(self.full_name)

    def hurry(self) -> None:
        """Try instances that were given up again soon."""
        for instance in self.instances:
            instance.hurry()

    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Answer all accepted requests, finalize all instances and release everything; False if anything was cut short.

        Args:
            drain_timeout_s: time limit for the requests that were accepted before.
            finalize_timeout_s: time limit for ``finalize``. Both limits count from the call; if there is no drain
                limit, this one counts from the last answer.
        """
        began_s = time.monotonic()
        self.state = ModelState.UNLOADING
        if drain_timeout_s is None:
            await self.sequences.ended_within(
                self._host.settings.exit_timeout_s, f"model '{self.name}' version {self.version}"
            )
        drained = await self.open_requests.drained_within(drain_timeout_s)
        if not drained:
            self._executions.refuse_waiting()
        if finalize_timeout_s is not None and drain_timeout_s is not None:
            finalize_timeout_s = max(0.0, finalize_timeout_s - (time.monotonic() - began_s))
        ended = await self._processes.stop(finalize_timeout_s)
        queue = self._queue
        if queue is not None and queue.answers is not None:
            await queue.answers.finish()
        # Requests that were sent to a killed stub and not started now wait for another instance, but none will come.
        self._executions.refuse_waiting()
        await self._processes.close()
        if queue is not None:
            queue.scheduler.close()
        self._arena.close()
        self.state, self.reason = ModelState.UNAVAILABLE, UNLOADED
        return drained and ended

    # Health and statistics

    @property
    def environment(self) -> Mapping[str, Any] | None:
        """Metadata about the Python environment that it brings; None if it runs on the server's Python."""
        return self._processes.environment

    @property
    def sandbox(self) -> ModelSandbox | None:
        """The sandbox of its processes, even after they have ended; None if they are not confined."""
        return self._processes.sandbox

    @property
    def confinement(self) -> Mapping[str, Any] | None:
        """The confinement of its processes; None if they are not confined."""
        return None if self.sandbox is None else self.sandbox.summary()

    @property
    def is_ready(self) -> bool:
        """True if requests are accepted and every instance is alive; excludes the model's own ``is_ready``."""
        return self.state is ModelState.READY and self._processes.are_ready

    @property
    def has_is_ready(self) -> bool:
        """True if the model has its own readiness check."""
        return any(instance.has_is_ready for instance in self.instances)

    async def not_ready_reason(self) -> str:
        """The reason why the model is not ready; empty if it is ready. Calls every instance's ``is_ready``."""
        if self.state is not ModelState.READY:
            return self.reason or self.state.value.lower()
        return await self._processes.not_ready_reason()

    @property
    def pending_count(self) -> int:
        """Number of requests that wait for an instance."""
        if self._queue is None:
            return 0
        return len(self._queue.scheduler) + sum([instance.executor.sent_ahead for instance in self.instances])

    @property
    def instances(self) -> Sequence[ModelInstance]:
        """All instances, in configured order."""
        return self._processes.instances

    @property
    def running(self) -> Sequence[RunningExecution]:
        """The running executions of this model's stubs."""
        return () if self._queue is None else self._queue.running

    @property
    def input_memory_bytes(self) -> int:
        """Shared memory that this model's inputs use or keep warm."""
        return self._arena.total_bytes

    @property
    def copied_bytes(self) -> int:
        """Sum of all tensors that were copied into that memory so far."""
        return self._arena.leased_bytes

    @property
    def output_memory_bytes(self) -> int:
        """Shared memory that its processes have for outputs."""
        return sum([instance.output_memory_bytes for instance in self.instances])

    # Requests

    def lease(self, nbytes: int, name: str = "", *, arriving: bool = False) -> ArenaLease:
        """Allocate input memory for a tensor.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """
        return self._arena.lease(nbytes, arriving=arriving)

    def owns(self, lease: Lease) -> bool:
        """True if this block is from :meth:`lease`."""
        return isinstance(lease, ArenaLease) and self._arena.owns(lease)

    def take_regions(self, request: InferenceRequest) -> None:
        """Give each input in a region the memory into which the stub copies it, and let the stub write the outputs.

        The host needs the outputs of implicit states itself.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """
        for tensor in request.inputs:
            source = source_of(tensor)
            if source is None:
                continue
            if self._views_regions:
                source.is_view = True
            elif source.nbytes > INLINE_BYTES:
                source.block = self._arena.lease(source.nbytes)
        for name, output in (request.regions or {}).items():
            output.by_stub = name not in self._states

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a validated request; the answer goes to ``on_response``, never before this returns.

        Raises:
            InferenceError: the request is refused; the caller must release its memory.
        """
        queue = self._queue
        if queue is None or not (self.state is ModelState.READY or self.open_requests.admits(request)):
            if self.failure is not None:
                raise self.failure.again()
            raise not_ready(self.name, self.version)
        if self._executions.all_failed:
            raise self._executions.no_instance()
        for tensor in request.inputs:
            data = tensor.data
            if tensor.lease is None and len(data) > INLINE_BYTES:  # type: ignore[arg-type]  # bytes have arrived
                lease = self._arena.lease(len(data))  # type: ignore[arg-type]
                lease.view[:] = data  # type: ignore[assignment]
                tensor.lease, tensor.data = lease, lease.view
        if self.signature.has_reshape:
            for tensor in request.inputs:
                tensor.shape = self.signature.shape_for_model(self.signature.inputs[tensor.name], tensor.shape)
        pending = PendingRequest(request, on_response, queue)
        request.queued_ns = time.monotonic_ns()
        try:
            if queue.answers is None or request.regions is not None:  # what lies in a region may change at any time
                queue.scheduler.enqueue(pending)
            else:
                queue.answers.submit(pending)
        except InferenceError as error:
            predecessor = self.sequences.begun_at(request) if isinstance(error, UnknownSequenceError) else None
            if predecessor is not None:
                return predecessor.continue_sequence(request, on_response, self.signature)
            reason = FailureReason.REJECTED if error.code is ErrorCode.UNAVAILABLE else FailureReason.OTHER
            self.statistics.add_failure(reason, request.queued_ns)
            raise
        self.open_requests.enter(request)
        return pending

    def runs_sequence(self, request: InferenceRequest) -> bool:
        """True if the sequence to which a request belongs has begun here and not ended."""
        return self.sequences.run(request)

    def continue_sequence(
        self, request: InferenceRequest, on_response: OnResponse, checked: ModelSignature
    ) -> PendingRequest:
        """Queue a request of a sequence that began here; otherwise as :meth:`submit`.

        Args:
            request: its memory may be the successor's.
            on_response: as for :meth:`submit`.
            checked: the signature that it was validated against.

        Raises:
            InferenceError: the request is refused; the caller must release its memory.
        """
        queue = self._queue
        assert queue is not None
        if checked.inputs != self.signature.inputs:
            raise InferenceError(
                f"sequence {request.correlation_id} began before model '{self.name}' was replaced by a version with other "
                "inputs, and cannot continue: start it again with the START flag",
                ErrorCode.UNAVAILABLE,
            )
        for tensor in request.inputs:
            if tensor.lease is not None and not self.owns(tensor.lease):
                lease = self._arena.lease(len(tensor.data))  # type: ignore[arg-type]  # bytes have arrived
                lease.view[:] = tensor.data  # type: ignore[assignment]
                tensor.release()
                tensor.lease, tensor.data = lease, lease.view
        request.model_version = self.version
        pending = PendingRequest(request, on_response, queue)
        queue.scheduler.enqueue(pending)
        self.open_requests.enter(request)
        return pending

    def trim(self, now_ns: int) -> None:
        """Release unused memory; called about once a second."""
        dropped: list[int] = []
        self._arena.trim(now_ns, dropped.append)
        for instance in self.instances:
            instance.trim(dropped, now_ns)
        limit_s = self._host.settings.abandoned_limit_s
        if limit_s is None or self.state is not ModelState.UNLOADING:
            return
        for instance in self.instances:
            instance.end_abandoned(limit_s, now_ns, is_needed=bool(self.pending_count or self.sequences.are_active))
