"""What a model version has done so far. The hot path only adds integers; whoever reads them makes documents of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FailureReason(StrEnum):
    """Why a request failed, as the label ``reason`` of the failure counter."""

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
        failures: failed requests by reason.
        load_duration_ns: how long the load took.
    """

    success_count: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    inference_count: int = 0
    execution_count: int = 0
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    load_duration_ns: int = 0
