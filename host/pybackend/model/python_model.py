"""A model whose code runs in stub processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError, UnknownSequenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, RequestHolder, RunningExecution
from pybackend.inference.region import source_of
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.instance.executor import InstanceExecutor
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.output_check import output_form
from pybackend.instance.services import StubServices
from pybackend.instance.settings import InstanceState
from pybackend.ipc.arena import TensorArena
from pybackend.model.cached_answers import CachedAnswers, response_path
from pybackend.model.host import ModelHost
from pybackend.model.instance_health import InstanceHealth
from pybackend.model.instance_requests import InstanceRequests
from pybackend.model.model import UNLOADED, Membership, Model, ModelState, not_ready
from pybackend.model.processes import ModelProcesses, gpu_accesses
from pybackend.model.renewal import SEQUENCES_LIMIT_S, ProcessRenewal
from pybackend.model.source import ModelSource
from pybackend.model.statistics import FailureReason
from pybackend.model.version_loader import CompletedVersion, VersionLoader
from pybackend.modelconfig.loader import planned_instances
from pybackend.modelconfig.signature import ModelSignature
from pybackend.scheduler.active_sequences import ActiveSequences
from pybackend.scheduler.choice import make_scheduler
from pybackend.scheduler.scheduler import Scheduler, SchedulerOwner
from pybackend.scheduler.sequence_batcher import SequenceBatcher
from pybackend_wire.messages import INLINE_BYTES

log = logging.getLogger(__name__)

_READY = ModelState.READY  # looked up once: an enumeration's members are found by a function

_SEQUENCE_CANCELLED = InferenceError("a client cancelled another request of the same sequence", ErrorCode.CANCELLED)


class VersionSequences:
    """The active sequences of one version, and of those that it replaces.

    Attributes:
        active: those of this version; None if it has no sequences.
        predecessors: the versions that are being replaced and have active sequences.
        cut: the ids of the sequences of this version, or of the one that it has replaced, that the replacement has cut
            short.
    """

    def __init__(self) -> None:
        self.predecessors: Sequence[PythonModel] = ()
        self.active: ActiveSequences | None = None
        self.cut: frozenset[int | str] = frozenset()
        self._is_replaced = False

    @property
    def are_active(self) -> bool:
        """True while further requests of a sequence may come."""
        return bool(self.active)

    def begun_at(self, request: InferenceRequest) -> PythonModel | None:
        """The predecessor on which a request's sequence began, None for any other request."""
        return next((model for model in self.predecessors if model.sequences.continues(request)), None)

    def continues(self, request: InferenceRequest) -> bool:
        """True if a request belongs to a sequence that may end here although the version was replaced."""
        return self._is_replaced and self._have(request)

    def explained(self, error: InferenceError, request: InferenceRequest, timeout_s: float | None) -> InferenceError:
        """The error for a request that was refused; it says so if its sequence was cut short by a replacement."""
        replaced = (self, *(each.sequences for each in self.predecessors))
        if not isinstance(error, UnknownSequenceError) or not any(
            request.correlation_id in each.cut for each in replaced
        ):
            return error
        return UnknownSequenceError(
            f"{error.message}. It began before the model was replaced, and was cut short when it had not ended "
            f"{timeout_s:g} s later, the --exit-timeout-secs: start it again",
            error.code,
        )

    def has(self, request: InferenceRequest) -> bool:
        """True if a request belongs to an active sequence of this version, or of one that it replaces."""
        return self._have(request) or self.begun_at(request) is not None

    def _have(self, request: InferenceRequest) -> bool:
        return self.active is not None and self.active.continues(request.correlation_id)

    def keep(self) -> None:
        """The version is being replaced: its sequences may go on until :meth:`ended_within` returns."""
        self._is_replaced = True

    async def ended_within(self, timeout_s: float | None, version: str) -> None:
        """Wait for the end of the sequences of a version that was replaced, or cut them short after this time.

        Returns at once for any other version. The log names the version as it is given.
        """
        active = self.active
        if active and self._is_replaced:
            ended = asyncio.Event()
            active.on_all_ended = ended.set
            try:
                async with asyncio.timeout(timeout_s):
                    await ended.wait()
            except TimeoutError:
                self.cut = active.ids
                log.warning(
                    "%s was replaced %.1f s ago, and its sequences that go on are cut short", version, timeout_s
                )
            finally:
                active.on_all_ended = None
        self._is_replaced = False


@dataclass(eq=False)
class ServingVersion(RequestHolder):
    """A loaded version: its instances, and the holder of the requests that wait for them.

    Attributes:
        version: with its completed configuration.
        loader: loaded it, or changed its instances last.
        instances: those that accept requests; the requests share this list.
        executors: of these instances; the scheduler shares this list.
        answers: the cached answers, which see requests first; None if all requests are executed.
        changing: held while instances are exchanged.
    """

    version: CompletedVersion
    loader: VersionLoader
    instances: list[ModelInstance]
    executors: list[InstanceExecutor]
    scheduler: Scheduler
    answers: CachedAnswers | None
    requests: InstanceRequests
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def cancel(self, pending: PendingRequest) -> None:
        """Drop a waiting request; its sender is answered on the next loop turn, as for every request.

        If it belongs to a sequence, so are the senders of the sequence's other waiting requests.
        """
        if self.answers is not None and self.answers.concerns(pending):
            return  # the lookup notices the cancellation
        for removed in self.scheduler.remove(pending):
            self.requests.on_dropped(removed, CANCELLED if removed is pending else _SEQUENCE_CANCELLED)

    def blockers(self, pending: PendingRequest) -> Sequence[RunningExecution]:
        """All running executions, unless an instance could run one more."""
        if any(instance.has_place for instance in self.instances):
            return ()
        return [execution for instance in self.instances for execution in instance.executor.running]

    def take_regions(self, request: InferenceRequest, arena: TensorArena) -> None:
        """Give each input in a region the memory into which the stub copies it, and let the stub write the outputs.

        The host needs the outputs of implicit states itself.
        """
        for tensor in request.inputs:
            source = source_of(tensor)
            if source is None:
                continue
            if self.version.options.views_regions:
                source.is_view = True
            elif source.nbytes > INLINE_BYTES:
                source.block = arena.lease(source.nbytes)
        states = () if self.version.states is None else self.version.states.output_names
        for name, output in (request.regions or {}).items():
            output.by_stub = name not in states

    async def change_instances(self, loader: VersionLoader) -> list[ModelInstance]:
        """Serve with the instances of another configuration; returns them, with those that accept no requests."""
        async with self.changing:
            version = replace(self.version, config=loader.renewed(self.version.config))
            every, serves = await loader.change_instances(self.version, version)
            self._serve_with(serves)
            self.version, self.loader = version, loader
            return every

    def _serve_with(self, instances: list[ModelInstance]) -> None:
        self.instances[:] = instances
        self.executors[:] = [instance.executor for instance in instances]
        self.scheduler.change_instances()

    async def renew(self, processes: ModelProcesses, instance: ModelInstance) -> ModelInstance | None:
        """Start the successor of an instance, and serve with it.

        Returns it, or None if the instance has left meanwhile.

        The instance ends when it has answered what it has begun, and the sequences at it have ended.

        Raises:
            ModelLoadError: it could not be started, and nothing has changed; InferenceError likewise.
        """
        async with self.changing:
            if instance not in processes.instances:
                return None
            successor = await self.loader.start_successor(self.version, instance)
            successor.succeed(instance)
            self._serve_with([successor if each is instance else each for each in self.instances])
            processes.succeed(instance, successor, partial(self._keeps_for_sequences, time.monotonic()))
        self.requests.on_available()
        return successor

    def _keeps_for_sequences(self, renewed_s: float, executor: InstanceExecutor) -> bool:
        """Whether an instance that was renewed goes on because of its sequences.

        They are cut short when they have had their time.
        """
        if not self.scheduler.keeps(executor):
            return False
        if time.monotonic() < renewed_s + SEQUENCES_LIMIT_S:
            return True
        log.warning("instance '%s' was renewed, and its sequences that go on are cut short", executor.name)
        what = f"its process was renewed, and it had not ended {SEQUENCES_LIMIT_S:g} s later"
        self.scheduler.on_lost(executor, InferenceError(what, ErrorCode.UNAVAILABLE))
        return False


class PythonModel(Model):
    """A version that runs in stub processes: manages its life cycle, and queues its requests.

    Attributes:
        sequences: those that have begun here, or on a version that this one replaces.
    """

    def __init__(self, source: ModelSource, host: ModelHost, services: StubServices) -> None:
        super().__init__(source, host.arena_of(source))
        self._source = source
        self._host = host
        self._requests = InstanceRequests(self, services.on_turn)
        self._availability = self._requests.availability
        self._processes = ModelProcesses(
            source,
            host,
            lambda name, failures: ModelInstance(name, self.version, host.launcher, self._requests, services, failures),
        )
        self.instances = self._processes.instances
        self.health = InstanceHealth(self, self._processes, self._availability)
        self._serving: ServingVersion | None = None
        self._renewal: ProcessRenewal | None = None  # None if processes are never renewed
        self.sequences = VersionSequences()

    # Life

    async def load(self) -> None:
        started_ns = time.monotonic_ns()
        try:
            await self._load()
        except (ModelLoadError, InferenceError) as error:
            await self._processes.stop(finalize_timeout_s=0)
            await self._processes.close()
            failed = ModelLoadError(error.message, error.code)
            self.state, self.reason = ModelState.UNAVAILABLE, failed.reason()
            raise failed from error
        finally:
            self.sandbox = self._processes.sandbox
        self.statistics.load_duration_ns = time.monotonic_ns() - started_ns
        self.state, self.reason, self.was_ready = ModelState.READY, "", True
        self.be_newest(newest=self.is_newest)

    def be_newest(self, *, newest: bool) -> None:
        """Then models in its processes may run it themselves, too, for calls that name no version."""
        super().be_newest(newest=newest)
        self._processes.offer(offered=newest and self.state is ModelState.READY)

    async def _load(self) -> None:
        requests = self._requests
        loader = VersionLoader(self._source, self._host, self._processes)
        version = await loader.complete()
        self.environment = self._processes.environment
        self.config, self.signature, self.digest = version.config, version.signature, version.digest
        answers, path = response_path(self._host, version.config, version.digest, requests)
        decoupled, validates = version.config.decoupled, version.options.validate_outputs
        form = output_form(version.signature, version.hidden_outputs, validates=validates, may_be_missing=decoupled)
        instances = await loader.initialize(version)
        if not loader.needs_server(version):
            self.membership = Membership(self._processes.group, self._processes.member)
        executors = [instance.executor for instance in instances]
        scheduler, path = make_scheduler(
            version.config,
            executors,
            SchedulerOwner(requests.on_refused, self.arena.lease, self.statistics.add_batch),
            version.states,
            path,
        )
        requests.serve(scheduler, instances, form, path, decoupled=decoupled)
        self.sequences.active = scheduler.active if isinstance(scheduler, SequenceBatcher) else None
        self._serving = serving = ServingVersion(version, loader, instances, executors, scheduler, answers, requests)
        if version.options.renews_processes:
            self._renewal = ProcessRenewal(self._processes, partial(serving.renew, self._processes))

    def can_change_instances(self, source: ModelSource) -> bool:
        """True if :meth:`change_instances` can bring it up to date with a source of which only the instances differ."""
        if self._serving is None or self.state is not ModelState.READY or self._processes.is_debugged:
            return False
        group = self._processes.group
        if group is None:
            return True
        # Those of a group with one number live in one process, and all of them on one GPU.
        planned = planned_instances(source.config, len(self._host.gpus.found))
        return not any(gpu.files for gpu in (*group.terms.gpus, *gpu_accesses(self._host, planned)))

    async def change_instances(self, source: ModelSource) -> None:
        """Start and end instances as another configuration says. The others go on, with the configuration they have.

        Those that have nothing to do have ended when this returns; busy ones end when they have answered what they have
        begun, and the sequences at them have ended.

        Raises:
            ModelLoadError: an instance could not be started, and nothing has changed.
        """
        serving = self._serving
        assert serving is not None
        try:
            every = await serving.change_instances(
                VersionLoader(source, self._host, self._processes, serving.loader.warnings)
            )
        except InferenceError as error:
            raise ModelLoadError(error.message, error.code) from error
        self._source, self.config = source, serving.version.config
        self.be_newest(newest=self.is_newest)
        self._requests.on_available()
        await self._processes.replace_instances(every, serving.scheduler.keeps)

    def hurry(self) -> None:
        for instance in self.instances:
            instance.backoff.hurry()

    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        began_s = time.monotonic()
        self.state = ModelState.UNLOADING
        if self._renewal is not None:
            await self._renewal.end()
        self._processes.offer(offered=False)
        if drain_timeout_s is None:
            await self.sequences.ended_within(
                self._host.settings.exit_timeout_s, f"model '{self.name}' version {self.version}"
            )
        drained = await self.open_requests.drained_within(drain_timeout_s)
        if not drained:
            self._requests.refuse_waiting()
        if finalize_timeout_s is not None and drain_timeout_s is not None:
            finalize_timeout_s = max(0.0, finalize_timeout_s - (time.monotonic() - began_s))
        ended = await self._processes.stop(finalize_timeout_s)
        serving = self._serving
        if serving is not None and serving.answers is not None:
            await serving.answers.finish()
        # Requests that were sent to a killed stub and not started now wait for another instance, but none will come.
        self._requests.refuse_waiting()
        await self._processes.close()
        if serving is not None:
            serving.scheduler.close()
        self.arena.close()
        self.state, self.reason = ModelState.UNAVAILABLE, UNLOADED
        return drained and ended

    # Figures

    @property
    def load_stage(self) -> str:
        starting = (each for each in self.instances if each.state is not InstanceState.READY)
        session = next((each.session for each in starting if each.session is not None), None)
        return "its environment and its process are prepared" if session is None else session.stage

    @property
    def pending_count(self) -> int:
        if self._serving is None:
            return 0
        return len(self._serving.scheduler) + sum([instance.executor.sent_ahead for instance in self.instances])

    # Requests

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        serving = self._serving
        if serving is None or not (self.state is _READY or self.open_requests.admits(request)):
            if self.failure is not None:
                raise self.failure.again()
            raise not_ready(self.name, self.version)
        if self._availability.failure is not None:
            raise self._availability.failure.again()
        if request.regions is not None:
            serving.take_regions(request, self.arena)
        if request.packed is None:
            for tensor in request.inputs:
                data = tensor.data
                if tensor.lease is None and len(data) > INLINE_BYTES:  # type: ignore[arg-type]  # bytes have arrived
                    lease = self.arena.lease(len(data))  # type: ignore[arg-type]
                    lease.view[:] = data  # type: ignore[assignment]
                    tensor.lease, tensor.data = lease, lease.view
        if self.signature.has_reshape:
            request.packed = None
            for tensor in request.inputs:
                tensor.shape = self.signature.shape_for_model(self.signature.inputs[tensor.name], tensor.shape)
        pending = PendingRequest(request, on_response, serving)
        request.queued_ns = request.queued_ns or time.monotonic_ns()
        try:
            if serving.answers is None or request.regions is not None:  # what lies in a region may change at any time
                serving.scheduler.enqueue(pending)
            else:
                serving.answers.submit(pending)
        except InferenceError as error:
            return self._refused(error, request, on_response)
        self.open_requests.enter(request)
        return pending

    def _refused(self, error: InferenceError, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Let the version that this one replaces go on with its sequence, or raise the error."""
        predecessor = self.sequences.begun_at(request) if isinstance(error, UnknownSequenceError) else None
        if predecessor is not None:
            return predecessor.continue_sequence(request, on_response, self.signature)
        reason = FailureReason.REJECTED if error.code is ErrorCode.UNAVAILABLE else FailureReason.OTHER
        self.statistics.add_failure(reason, request.queued_ns)
        raise self.sequences.explained(error, request, self._host.settings.exit_timeout_s) from None

    def continue_sequence(
        self, request: InferenceRequest, on_response: OnResponse, checked: ModelSignature
    ) -> PendingRequest:
        """Queue a request of a sequence that began here; otherwise as :meth:`submit`.

        It was ``checked`` against the successor's signature, and its memory may be the successor's.
        """
        serving = self._serving
        assert serving is not None
        if checked.inputs != self.signature.inputs:
            raise InferenceError(
                f"sequence {request.correlation_id} began before model '{self.name}' was replaced by a version with other "
                "inputs, and cannot continue: start it again with the START flag",
                ErrorCode.UNAVAILABLE,
            )
        for tensor in request.inputs:
            if tensor.lease is not None and not self.owns(tensor.lease):
                lease = self.arena.lease(len(tensor.data))  # type: ignore[arg-type]  # bytes have arrived
                lease.view[:] = tensor.data  # type: ignore[assignment]
                tensor.release()
                tensor.lease, tensor.data = lease, lease.view
        request.model_version = self.version
        pending = PendingRequest(request, on_response, serving)
        serving.scheduler.enqueue(pending)
        self.open_requests.enter(request)
        return pending

    def trim(self, now_ns: int) -> None:
        dropped: list[int] = []
        self.arena.trim(now_ns, dropped.append)
        for instance in (*self.instances, *self._processes.leaving):
            instance.trim(dropped, now_ns)
        if self._renewal is not None and self.state is _READY:
            self._renewal.look()
        limit_s = self._host.settings.abandoned_limit_s
        if limit_s is None or self.state is not ModelState.UNLOADING:
            return
        for instance in self.instances:
            instance.end_abandoned(limit_s, now_ns, is_needed=bool(self.pending_count or self.sequences.are_active))


def could_run(caller: Model, called: Model) -> bool:
    """Whether a version could run another one, which it calls, in a process that they share, and does not. Blocking."""
    if not (isinstance(caller, PythonModel) and isinstance(called, PythonModel)):
        return False
    serving = called._serving
    if called is caller or called.namespace != caller.namespace or serving is None:
        return False
    if called.health.has_is_ready or not called.is_newest or serving.loader.tends(serving.version):
        return False
    return caller._processes.could_share(called._processes)
