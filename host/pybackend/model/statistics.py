"""Counters of a model version. The hot path only adds integers; readers format them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from pybackend.inference.request import InferenceRequest
from pybackend.instance.execution import ExecutionTimes
from pybackend.scheduler.scheduler import BatchReason


class FailureReason(StrEnum):
    """The reason for a request's failure, used as the ``reason`` label of the failure counter."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(slots=True)
class ModelStatistics:
    """Counters of one model version; times are cumulative nanoseconds.

    Attributes:
        success_count: requests answered with a result.
        success_ns: from submission to answer, of successful requests.
        queue_ns: waiting for an instance.
        compute_input_ns: in the stub, before ``execute``.
        compute_infer_ns: in ``execute``.
        compute_output_ns: from the end of ``execute`` until the host has the outputs.
        inference_count: sum of the batch sizes of executed requests.
        execution_count: calls of ``execute``.
        cache_hit_count: requests answered from the response cache.
        cache_hit_ns: time spent on lookups that found an answer.
        cache_miss_count: executed requests of models that use the cache.
        cache_miss_ns: time spent on lookups that found nothing, and on inserting the responses.
        failures: failed requests by reason.
        batches: batches that the dynamic batcher sent, by the reason for their size.
        load_duration_ns: duration of the load.
    """

    success_count: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    inference_count: int = 0
    execution_count: int = 0
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    batches: Counter[BatchReason] = field(default_factory=Counter)
    load_duration_ns: int = 0

    def add_successes(self, count: int, executed: int, queued_ns: int, times: ExecutionTimes, now_ns: int) -> None:
        """Count requests of one execution that were just answered with a result.

        Args:
            count: number of requests.
            executed: sum of their batch sizes.
            queued_ns: sum of the times at which they were queued.
            times: of the execution.
            now_ns: the time at which they were answered.
        """
        self.success_count += count
        self.inference_count += executed
        self.success_ns += now_ns * count - queued_ns
        self.queue_ns += times.began_ns * count - queued_ns
        self.compute_input_ns += (times.infer_start_ns - times.began_ns) * count
        self.compute_infer_ns += (times.infer_end_ns - times.infer_start_ns) * count
        self.compute_output_ns += max(0, now_ns - times.infer_end_ns) * count

    def add_success(self, request: InferenceRequest, times: ExecutionTimes, now_ns: int) -> None:
        """Count a request answered by a response sender; time after ``execute`` does not count as output time."""
        self.add_successes(1, request.batch_size, request.queued_ns, times, now_ns)
        self.compute_output_ns -= max(0, now_ns - times.infer_end_ns)

    def add_pass(self, batch_size: int, took_ns: int) -> None:
        """Count a request that other models answered; their statistics contain its queue and compute times."""
        self.success_count += 1
        self.inference_count += batch_size
        self.execution_count += 1
        self.success_ns += took_ns
