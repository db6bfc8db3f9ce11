"""Counters of a model version. The hot path only adds integers; readers format them."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pybackend.errors import ErrorCode
from pybackend.inference.pending import PendingRequest, ResponsePath
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.instance.execution import Execution, ExecutionTimes
from pybackend.model.latencies import FirstResponses, LatencySummaries, RecentTimes
from pybackend.scheduler.scheduler import BatchReason

MOST_BATCH_SIZES = 1000
"""Limit on the batch sizes that are counted separately, because clients choose them. Totals contain all sizes."""


class FailureReason(StrEnum):
    """The reason for a request's failure, used as the ``reason`` label of the failure counter."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class BatchFigures:
    """Executions of one batch size; times are cumulative nanoseconds."""

    count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class Duration:
    """A number of events, and the nanoseconds that they took together."""

    count: int = 0
    ns: int = 0

    def add(self, took_ns: int) -> None:
        self.count += 1
        self.ns += took_ns


@dataclass(slots=True)
class ResponseFigures:
    """The responses at one place of their streams."""

    # from the response before it, or the start of the execution, until the model sent it
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)  # passing it on to the sender of the request
    success: Duration = field(default_factory=Duration)  # the sum of both
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)  # ends of streams without a response
    cancel: Duration = field(default_factory=Duration)  # ends of streams whose sender had cancelled the request


@dataclass(slots=True)
class ShadowFigures:
    """Counters of a version that gets copies of requests. Dropped copies were due and not sent."""

    sent: int = 0
    dropped: int = 0
    compared: int = 0
    differed: int = 0


Counted = tuple[int, int, int, int, ExecutionTimes]
"""An execution's numbers: the requests answered with a result, the sums of their batch sizes and of the times at which
they were queued, the sum of all its batch sizes, and its times."""


@dataclass(slots=True)
class ModelStatistics:
    """Counters of one model version; times are cumulative nanoseconds."""

    success_count: int = 0  # requests answered with a result
    success_ns: int = 0  # from submission to answer, of successful requests
    fail_ns: int = 0  # the same of failed requests
    queue_ns: int = 0  # waiting for an instance
    compute_input_ns: int = 0  # in the stub, before ``execute``
    compute_infer_ns: int = 0  # in ``execute``
    compute_output_ns: int = 0  # from the end of ``execute`` until the host has the outputs
    inference_count: int = 0  # sum of the batch sizes of executed requests
    execution_count: int = 0
    cache_hit_count: int = 0  # requests answered from the response cache
    cache_hit_ns: int = 0  # time spent on lookups that found an answer
    cache_miss_count: int = 0  # executed requests of models that use the cache
    cache_miss_ns: int = 0  # time spent on lookups that found nothing, and on inserting the responses
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    # those that the dynamic batcher sent, by the reason for their size
    batches: Counter[BatchReason] = field(default_factory=Counter)
    # executions by the sum of their requests' batch sizes
    batch_sizes: dict[int, BatchFigures] = field(default_factory=dict)
    # of decoupled models, by the response's place in its stream
    responses: list[ResponseFigures] = field(default_factory=list)
    summaries: LatencySummaries | None = None  # recent latencies, None if the server does not show them
    # times in ``execute`` of the last executions that succeeded
    recent: RecentTimes = field(default_factory=RecentTimes)
    first_responses: FirstResponses | None = None  # of times to first responses; None if the server does not show it
    shadow: ShadowFigures | None = None  # copies that it got, None if it was never a shadow
    last_success_ns: int = 0  # ``time.monotonic_ns()`` of the last successful answer, 0 if there was none
    load_duration_ns: int = 0

    def add_executions(self, executions: Sequence[Counted], now_ns: int) -> None:
        """Count calls of ``execute``, and the requests that they answer now with a result."""
        answered = executed = queued = began = started = ended = 0
        for count, size, queued_ns, batch_size, (began_ns, start_ns, end_ns) in executions:
            if count:
                answered += count
                executed += size
                queued += queued_ns
                began += began_ns * count
                started += start_ns * count
                ended += end_ns * count
                self.recent.add(end_ns - start_ns)
            figures = self.batch_sizes.get(batch_size) or self._figures_of(batch_size)
            if figures is not None:
                figures.count += 1
                figures.compute_input_ns += start_ns - began_ns
                figures.compute_infer_ns += end_ns - start_ns
                figures.compute_output_ns += now_ns - end_ns
        self.execution_count += len(executions)
        if answered:
            self.success_count += answered
            self.inference_count += executed
            self.success_ns += now_ns * answered - queued
            self.queue_ns += began - queued
            self.compute_input_ns += started - began
            self.compute_infer_ns += ended - started
            self.compute_output_ns += now_ns * answered - ended
            self.last_success_ns = now_ns

    def add_batch(self, reason: BatchReason) -> None:
        """Count a batch that the dynamic batcher has sent."""
        self.batches[reason] += 1

    def _figures_of(self, batch_size: int) -> BatchFigures | None:
        """The figures of executions of a size, None if there are too many sizes."""
        figures = self.batch_sizes.get(batch_size)
        if figures is None and len(self.batch_sizes) < MOST_BATCH_SIZES:
            figures = self.batch_sizes[batch_size] = BatchFigures()
        return figures

    def add_success(self, request: InferenceRequest, times: ExecutionTimes, now_ns: int) -> None:
        """Count a request answered by a response sender; time after ``execute`` does not count as output time."""
        self.success_count += 1
        self.inference_count += request.batch_size
        self.success_ns += now_ns - request.queued_ns
        began_ns, start_ns, end_ns = times
        self.queue_ns += began_ns - request.queued_ns
        self.compute_input_ns += start_ns - began_ns
        self.compute_infer_ns += end_ns - start_ns
        self.recent.add(end_ns - start_ns)
        self.last_success_ns = now_ns
        if self.summaries is not None:
            self.summaries.add(request.queued_ns, times, now_ns, 0)

    def add_pass(self, batch_size: int, took_ns: int, now_ns: int) -> None:
        """Count a request that other models answered; their statistics contain its queue and compute times."""
        self.success_count += 1
        self.inference_count += batch_size
        self.success_ns += took_ns
        self.last_success_ns = now_ns
        self.execution_count += 1
        figures = self._figures_of(batch_size)
        if figures is not None:
            figures.count += 1  # there is no time to add
        if self.summaries is not None:
            self.summaries.request.add(took_ns, now_ns)

    def add_hit(self, queued_ns: int) -> None:
        """Count a request answered from the response cache; its lookup's time is in :attr:`cache_hit_ns` already."""
        now_ns = time.monotonic_ns()
        self.success_count += 1
        self.cache_hit_count += 1
        self.success_ns += now_ns - queued_ns
        self.last_success_ns = now_ns

    def add_failure(self, reason: FailureReason, queued_ns: int, now_ns: int = 0) -> None:
        """Count a request that was answered with an error, now unless a time is given."""
        self.failures[reason] += 1
        self.fail_ns += (now_ns or time.monotonic_ns()) - queued_ns

    @property
    def executed_count(self) -> int:
        """Successful requests that the response cache did not answer."""
        return self.success_count - self.cache_hit_count

    @property
    def last_success_unix_ms(self) -> int:
        """Time of the last successful answer, in milliseconds since 1970; 0 if there was none."""
        if not self.last_success_ns:
            return 0
        return (time.time_ns() - (time.monotonic_ns() - self.last_success_ns)) // 1_000_000


MOST_PLACES = 1000
"""Responses beyond this place in their stream have no figures: models choose the number of responses."""


@dataclass(slots=True)
class _Stream:
    """One request's responses so far: the time of the last one, or of the execution's start, and their number."""

    last_ns: int
    count: int = 0


class StreamStatistics:
    """A stage of the response path; see :mod:`pybackend.inference.pending`."""

    def __init__(self, figures: list[ResponseFigures], pass_on: ResponsePath) -> None:
        self._figures = figures
        self._pass_on = pass_on
        self._streams: dict[PendingRequest, _Stream] = {}

    def begin(self, pending: PendingRequest, execution: Execution) -> None:
        """Note the start of a request's execution, unless it is known; call this before a response is passed on."""
        if pending not in self._streams:
            self._streams[pending] = _Stream(execution.times[1] or execution.sent_ns)

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Count a response that the model sent, and pass it on."""
        stream = self._streams.get(pending)
        if stream is None:
            self._pass_on(pending, response)  # the server's own answer to a request that was not executed
            return
        error, empty, final = response.error, response.empty, response.final
        arrived_ns = time.monotonic_ns()
        self._pass_on(pending, response)
        if final:
            del self._streams[pending]
        place, began_ns = stream.count, stream.last_ns
        stream.count, stream.last_ns = place + 1, arrived_ns
        if place >= MOST_PLACES:
            return
        if place >= len(self._figures):
            self._figures.append(ResponseFigures())
        figures = self._figures[place]
        computed_ns = arrived_ns - began_ns
        if error is not None:
            cancelled = pending.cancelled and error.code is ErrorCode.CANCELLED
            (figures.cancel if cancelled else figures.fail).add(computed_ns)
        elif empty:
            (figures.cancel if pending.cancelled else figures.empty_response).add(computed_ns)
        else:
            passed_ns = time.monotonic_ns() - arrived_ns
            figures.compute_infer.add(computed_ns)
            figures.compute_output.add(passed_ns)
            figures.success.add(computed_ns + passed_ns)
