"""Follows the requests that a version's instances execute: checks, counts and sends their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, ResponsePath, RunningExecution, guarded
from pybackend.inference.response import InferenceResponse
from pybackend.instance.execution import Execution
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.settings import InstanceState
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.model.cached_answers import CachedAnswers
from pybackend.model.open_requests import OpenRequests, RequestOutcomes
from pybackend.model.output_check import OutputForm
from pybackend.model.statistics import FailureReason, ModelStatistics, StreamStatistics
from pybackend.scheduler.scheduler import BatchReason, Scheduler

_SEQUENCE_CANCELLED = InferenceError("a client cancelled another request of the same sequence", ErrorCode.CANCELLED)


class ModelQueue:
    """Cancels and describes the requests that wait in the scheduler, for their handles; see :class:`pybackend.inference.pending.RequestHolder`.

    Attributes:
        scheduler: dispatches the requests.
        answers: the cached answers, which see requests first; None if all requests are executed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        answers: CachedAnswers | None,
        instances: Sequence[ModelInstance],
        outcomes: RequestOutcomes,
    ) -> None:
        self.scheduler = scheduler
        self.answers = answers
        self._instances = instances
        self._outcomes = outcomes

    def cancel(self, pending: PendingRequest) -> None:
        """Drop a waiting request; its sender is answered on the next loop turn, as for every request.

        If it belongs to a sequence, so are the senders of the sequence's other waiting requests.
        """
        if self.answers is not None and self.answers.concerns(pending):
            return  # the lookup notices the cancellation
        for removed in self.scheduler.remove(pending):
            self._outcomes.on_dropped(removed, CANCELLED if removed is pending else _SEQUENCE_CANCELLED)

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Do nothing: waiting requests receive no responses, and their instance will check whether they are paused."""

    def is_running(self, pending: PendingRequest) -> bool:
        """Always False: a waiting request has not started."""
        return False

    def blockers(self, pending: PendingRequest) -> Sequence[RunningExecution]:
        """All running executions, unless an instance could run one more."""
        return () if any(instance.has_place for instance in self._instances) else self.running

    @property
    def running(self) -> list[RunningExecution]:
        """The executions that are running in stubs."""
        return [execution for instance in self._instances for execution in instance.running]


_FAILED = frozenset({InstanceState.FAILED, InstanceState.GIVEN_UP})


class Executions(RequestOutcomes):
    """Owns a version's instances and scheduler, and handles every event of their executions.

    Args:
        version: its decimal version.
        on_given_up: called when every instance was given up, with the error for requests and the last output of the
            first process.
        on_back: called when an instance serves after that.

    Attributes:
        all_failed: True if no instance serves now.
    """

    def __init__(
        self,
        name: str,
        version: str,
        statistics: ModelStatistics,
        open_requests: OpenRequests,
        arena: TensorArena,
        on_given_up: Callable[[InferenceError, str], None],
        on_back: Callable[[], None],
    ) -> None:
        super().__init__(name, version, statistics, open_requests)
        self.all_failed = False
        self._arena = arena
        self._given_up = False
        self._on_given_up = on_given_up
        self._on_back = on_back
        self._scheduler: Scheduler | None = None
        self._instances: Sequence[ModelInstance] = ()
        self._form: OutputForm | None = None
        self._streams: StreamStatistics | None = None

    def serve(
        self,
        scheduler: Scheduler,
        instances: Sequence[ModelInstance],
        form: OutputForm | None,
        path: ResponsePath,
        *,
        decoupled: bool,
    ) -> None:
        """Start accepting requests; the version is loaded.

        Args:
            scheduler: dispatches them.
            instances: execute them.
            form: for outputs, None if they are sent exactly as the model returns them.
            path: receives all responses.
            decoupled: requests may have several responses, which are counted one by one.
        """
        self._scheduler, self._instances, self._form = scheduler, instances, form
        self._deliver = guarded(path)
        if decoupled:
            self._streams = StreamStatistics(self.statistics.responses, self._deliver)
            self._deliver = self._streams.on_response

    def enqueue(self, pending: PendingRequest) -> None:
        """Queue a request that the cache does not answer.

        Raises:
            InferenceError: the request is refused.
        """
        assert self._scheduler is not None
        self._scheduler.enqueue(pending)

    def lease(self, nbytes: int, name: str = "") -> ArenaLease:
        """Input memory of the version.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """
        return self._arena.lease(nbytes)

    # Results

    def on_executed(self, execution: Execution, responses: Sequence[InferenceResponse | None]) -> None:
        """An instance has returned from ``execute``."""
        statistics, form = self.statistics, self._form
        summaries = statistics.summaries
        now_ns = time.monotonic_ns()
        succeeded = executed = queued_ns = batch_size = 0
        for pending, response in zip(execution.pending, responses, strict=True):
            if pending.is_filler:
                _forget(pending, response)
                continue
            request = pending.request
            batch_size += request.batch_size
            if request.trace is not None:
                request.trace.executed(execution.times, now_ns)
            if response is None:
                if pending.answered and pending.succeeded:
                    statistics.add_success(request, execution.times, now_ns)
                continue
            if form is not None:
                form.give_to(response, request.batch_size)
            if response.error is not None:
                if self._streams is not None:
                    self._streams.begin(pending, execution)
                statistics.add_failure(_reason(pending, response.error), request.queued_ns, now_ns)
            else:
                executed += request.batch_size
                succeeded += 1
                queued_ns += request.queued_ns
                if summaries is not None:
                    times = execution.times
                    summaries.add(request.queued_ns, times, now_ns, now_ns - times.infer_end_ns)
            self._answer(pending, response)
        if succeeded:
            statistics.add_successes(succeeded, executed, queued_ns, execution.times, now_ns)
        if succeeded or None in responses:
            statistics.add_execution(batch_size, execution.times, now_ns)
        assert self._scheduler is not None
        self._scheduler.dispatch()

    def on_response(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        """A response sender has sent a response."""
        if pending.is_filler:
            _forget(pending, response)
            return
        if self._form is not None and not response.empty:
            self._form.give_to(response, pending.request.batch_size)
        pending.succeeded &= response.error is None
        if self._streams is not None:
            self._streams.begin(pending, execution)
        if not response.final:
            self._deliver(pending, response)
            return
        if not pending.succeeded:
            self.statistics.add_failure(_reason(pending, response.error), pending.request.queued_ns)
        elif execution.times.infer_end_ns:  # otherwise it is counted when its execution ends
            self.statistics.add_success(pending.request, execution.times, time.monotonic_ns())
        self._answer(pending, response)

    # Requests that are returned or refused

    def on_rescheduled(self, again: list[PendingRequest]) -> None:
        """The model asked for these requests to be executed again."""
        assert self._scheduler is not None
        for pending in self._without_cancelled(again):
            self._scheduler.reschedule(pending)

    def on_handed_back(self, waiting: list[PendingRequest]) -> None:
        """An instance stays busy: its prefetched requests go to another instance, or back to the queue."""
        assert self._scheduler is not None
        self._scheduler.requeue(self._without_cancelled(waiting))
        self._scheduler.dispatch()

    def _without_cancelled(self, waiting: list[PendingRequest]) -> list[PendingRequest]:
        """The requests that still have a waiting sender; the others are answered."""
        for pending in waiting:
            if pending.cancelled:
                self.on_dropped(pending)
        return [pending for pending in waiting if not pending.cancelled]

    def on_lost(
        self, instance: object, error: InferenceError, begun: list[PendingRequest], waiting: list[PendingRequest]
    ) -> None:
        """A stub died. Requests it had started fail, because a rerun could repeat effects; the others are requeued."""
        self._fail(begun, error, FailureReason.BACKEND)
        if self._scheduler is not None:
            self._scheduler.requeue(self._without_cancelled(waiting))
            self._scheduler.on_lost(instance, error)
            self._scheduler.dispatch()

    def on_rejected(self, pending: PendingRequest, error: InferenceError) -> None:
        """The scheduler refused a request that was waiting."""
        self._fail([pending], error, FailureReason.REJECTED)

    def on_batch(self, reason: BatchReason) -> None:
        """The scheduler sent a batch."""
        self.statistics.batches[reason] += 1

    def refuse_waiting(self) -> None:
        """The version is being unloaded: refuse all waiting requests."""
        if self._scheduler is not None:
            what = f"the request to model '{self.name}' was still waiting when the server stopped"
            self.on_refused(self._scheduler.take_all(), InferenceError(what, ErrorCode.UNAVAILABLE))

    # Availability of instances

    def has_idle_instance(self) -> bool:
        """Whether an instance could begin with something at once."""
        return any(instance.executor.is_up and instance.executor.has_place for instance in self._instances)

    def on_available(self) -> None:
        """An instance came back, or could not be restarted, or was given up."""
        if self._scheduler is None:
            return
        states = {instance.state for instance in self._instances}
        self.all_failed = states <= _FAILED
        if states <= {InstanceState.GIVEN_UP}:
            self._given_up = True
            # Only operators see the process's last output: it may contain data of other clients.
            self._on_given_up(self.no_instance(), self._instances[0].output.last_words)
        elif self._given_up and InstanceState.READY in states:
            self._given_up = False
            self._on_back()
        if self.all_failed:
            self.on_refused(self._scheduler.take_all(), self.no_instance())
        else:
            self._scheduler.dispatch()

    def no_instance(self) -> InferenceError:
        """The error for requests while :attr:`all_failed` is True."""
        cause = self._instances[0].trouble
        return InferenceError(
            f"model '{self.name}' has no instance that can serve: its process could not be restarted. {cause}",
            ErrorCode.UNAVAILABLE,
        )


def _reason(pending: PendingRequest, error: InferenceError | None) -> FailureReason:
    """The reason for a failure that the model reported."""
    if pending.cancelled and error is not None and error.code is ErrorCode.CANCELLED:
        return FailureReason.CANCELED
    return FailureReason.BACKEND


def _forget(filler: PendingRequest, response: InferenceResponse | None) -> None:
    """Drop the response to a filler request."""
    if response is not None:
        filler.answered |= response.final
        response.release()
