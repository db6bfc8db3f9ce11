"""Follows the requests that a version's instances execute: checks, counts and sends their results."""

import logging
import time
from collections.abc import Callable, Sequence

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, ResponsePath, guarded
from pybackend.inference.response import InferenceResponse
from pybackend.instance.execution import Execution, ExecutionTimes, Returned
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.output_check import OutputForm
from pybackend.instance.settings import InstanceState
from pybackend.model.model import Model, ModelState
from pybackend.model.outcomes import RequestOutcomes
from pybackend.model.statistics import Counted, FailureReason, StreamStatistics
from pybackend.observability.log_lines import about_model
from pybackend.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

_FAILED = frozenset({InstanceState.FAILED, InstanceState.GIVEN_UP})


class Availability:
    """Whether a version can serve at all, or all its instances have failed.

    It calls ``on_turn`` when the version ceases to serve, or serves again, though nobody has loaded or unloaded it.

    Attributes:
        failure: the error for requests while no instance serves; None while one does, or may soon.
    """

    def __init__(self, model: Model, on_turn: Callable[[str], None]) -> None:
        self.failure: InferenceError | None = None
        self._model = model
        self._on_turn = on_turn
        self._given_up = False

    def look(self, instances: Sequence[ModelInstance]) -> None:
        """The state of an instance has changed."""
        states = {instance.state for instance in instances}
        self.failure = None
        if states <= _FAILED:
            self.failure = InferenceError(
                f"model '{self._model.name}' has no instance that can serve: its process could not be restarted. "
                f"{instances[0].trouble}",
                ErrorCode.UNAVAILABLE,
            )
        if self.failure is not None and states <= {InstanceState.GIVEN_UP}:
            self._give_up(self.failure, instances[0].output.last_words)
        elif self._given_up and InstanceState.READY in states:
            self._serve_again()

    def _give_up(self, failure: InferenceError, last_words: str) -> None:
        self._given_up = True
        model = self._model
        model.failure = failure
        if model.state is not ModelState.UNLOADING:
            # Only operators see the process's last output: it may contain data of other clients.
            model.state, model.reason = ModelState.UNAVAILABLE, f"Internal: {failure.message}{last_words}"
            self._on_turn(model.full_name)

    def _serve_again(self) -> None:
        self._given_up = False
        model = self._model
        model.failure = None
        if model.state is ModelState.UNAVAILABLE:
            model.state, model.reason = ModelState.READY, ""
            about = about_model(model.full_name, model.version)
            log.info("'%s' version %s serves again", model.full_name, model.version, extra=about)
            self._on_turn(model.full_name)


class InstanceRequests(RequestOutcomes):
    """The requests that a version's instances execute: handles all that happens to them, and to the instances."""

    def __init__(self, model: Model, on_turn: Callable[[str], None]) -> None:
        super().__init__(model)
        self.availability = Availability(model, on_turn)
        self.arena = model.arena
        self.send_next: Callable[[], None] | None = None
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

        ``form`` is None if outputs are sent exactly as the model returns them. The responses of ``decoupled`` models
        are counted one by one.
        """
        self._scheduler, self._instances, self._form = scheduler, instances, form
        self.send_next = None if scheduler.waits_for_answers else scheduler.dispatch
        self._deliver = guarded(path)
        if decoupled:
            self._streams = StreamStatistics(self.statistics.responses, self._deliver)
            self._deliver = self._streams.on_response

    def enqueue(self, pending: PendingRequest) -> None:
        assert self._scheduler is not None
        self._scheduler.enqueue(pending)

    def on_executed(self, returned: Sequence[Returned], now_ns: int) -> None:
        """An instance has returned from ``execute``, perhaps more than once."""
        statistics, form = self.statistics, self._form
        summaries = statistics.summaries
        counted: list[Counted] = []
        for execution, responses in returned:
            times = execution.times
            succeeded = executed = queued_ns = batch_size = 0
            for pending, response in zip(execution.pending, responses):  # noqa: B905  the instance has counted them
                request = pending.request
                batch_size += request.batch_size
                if pending.is_filler:
                    _forget(pending, response)
                    continue
                if request.trace is not None:
                    request.trace.executed(times, now_ns)
                if response is None:
                    if pending.answered and pending.succeeded:
                        statistics.add_success(request, times, now_ns)
                    continue
                if form is not None:
                    form.give_to(response, request)
                if response.error is not None:
                    self._count_failure(execution, pending, response.error, now_ns)
                else:
                    executed += request.batch_size
                    succeeded += 1
                    queued_ns += request.queued_ns
                    if summaries is not None:
                        summaries.add(request.queued_ns, times, now_ns, now_ns - times[2])
                self._answer(pending, response)
            if succeeded or None in responses:
                counted.append((succeeded, executed, queued_ns, batch_size, times))
        statistics.add_executions(counted, now_ns)
        assert self._scheduler is not None
        if self._scheduler.waits_for_answers:
            self._scheduler.dispatch()

    def _count_failure(self, execution: Execution, pending: PendingRequest, error: InferenceError, now_ns: int) -> None:
        if self._streams is not None:
            self._streams.begin(pending, execution)
        self.statistics.add_failure(_reason(pending, error), pending.request.queued_ns, now_ns)

    def on_local_call(self, times: ExecutionTimes, done_ns: int, batch_size: int, *, failed: bool) -> None:
        """Another model has run the version in the process that they share."""
        began_ns, _, end_ns = times
        if failed:
            self.statistics.add_failure(FailureReason.BACKEND, began_ns, done_ns)
            return
        if self.statistics.summaries is not None:
            self.statistics.summaries.add(began_ns, times, done_ns, done_ns - end_ns)
        self.statistics.add_executions([(1, batch_size, began_ns, batch_size, times)], done_ns)

    def on_streamed(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        if pending.is_filler:
            _forget(pending, response)
            return
        if self._form is not None and not response.empty:
            self._form.give_to(response, pending.request)
        pending.succeeded &= response.error is None
        if self._streams is not None:
            self._streams.begin(pending, execution)
        if not response.final:
            self._deliver(pending, response)
            return
        if not pending.succeeded:
            self.statistics.add_failure(_reason(pending, response.error), pending.request.queued_ns)
        elif execution.times[2]:  # otherwise it is counted when its execution ends
            self.statistics.add_success(pending.request, execution.times, time.monotonic_ns())
        self._answer(pending, response)

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
        self.on_refused(begun, error, FailureReason.BACKEND)
        if self._scheduler is not None:
            self._scheduler.requeue(self._without_cancelled(waiting))
            self._scheduler.on_lost(instance, error)
            self._scheduler.dispatch()

    def refuse_waiting(self) -> None:
        """The version is being unloaded: refuse all waiting requests."""
        if self._scheduler is not None:
            what = f"the request to model '{self.name}' was still waiting when the server stopped"
            self.on_refused(self._scheduler.take_all(), InferenceError(what, ErrorCode.UNAVAILABLE))

    def has_idle_instance(self) -> bool:
        """Whether an instance could begin with something at once."""
        return any(instance.executor.is_up and instance.executor.has_place for instance in self._instances)

    def on_available(self) -> None:
        """An instance came back, or could not be restarted, or was given up."""
        if self._scheduler is None:
            return
        self.availability.look(self._instances)
        if self.availability.failure is not None:
            self.on_refused(self._scheduler.take_all(), self.availability.failure)
        else:
            self._scheduler.dispatch()


def _reason(pending: PendingRequest, error: InferenceError | None) -> FailureReason:
    if pending.cancelled and error is not None and error.code is ErrorCode.CANCELLED:
        return FailureReason.CANCELED
    return FailureReason.BACKEND


def _forget(filler: PendingRequest, response: InferenceResponse | None) -> None:
    if response is not None:
        filler.answered |= response.final
        response.release()
