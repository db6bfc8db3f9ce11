"""The statistics of versions as plain data, with the members that the protocol gives them over HTTP and gRPC."""

from __future__ import annotations

from typing import Any

from pybackend.model.model import Model
from pybackend.model.statistics import BatchFigures, Duration, ModelStatistics, ResponseFigures

NAMESPACE = "namespace"
"""A member that only models of namespaces have."""


def statistics_document(model: Model) -> dict[str, Any]:
    """The statistics of a version; durations have a count and cumulative nanoseconds."""
    statistics = model.statistics
    return {
        "name": model.name,
        **({NAMESPACE: model.namespace} if model.namespace else {}),
        "version": model.version,
        "last_inference": statistics.last_success_unix_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": _requests(statistics),
        "response_stats": {str(place): _responses(each) for place, each in enumerate(statistics.responses)},
        "batch_stats": [_batches(size, each) for size, each in sorted(statistics.batch_sizes.items())],
        "memory_usage": [],  # the reference asks backends, and its Python backend does not answer
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def _requests(statistics: ModelStatistics) -> dict[str, dict[str, int]]:
    executed = statistics.executed_count
    return {
        "success": _duration(statistics.success_count, statistics.success_ns),
        "fail": _duration(sum(statistics.failures.values()), statistics.fail_ns),
        "queue": _duration(statistics.success_count, statistics.queue_ns),
        "compute_input": _duration(executed, statistics.compute_input_ns),
        "compute_infer": _duration(executed, statistics.compute_infer_ns),
        "compute_output": _duration(executed, statistics.compute_output_ns),
        "cache_hit": _duration(statistics.cache_hit_count, statistics.cache_hit_ns),
        "cache_miss": _duration(statistics.cache_miss_count, statistics.cache_miss_ns),
    }


def _batches(size: int, figures: BatchFigures) -> dict[str, Any]:
    return {
        "batch_size": size,
        "compute_input": _duration(figures.count, figures.compute_input_ns),
        "compute_infer": _duration(figures.count, figures.compute_infer_ns),
        "compute_output": _duration(figures.count, figures.compute_output_ns),
    }


def _responses(figures: ResponseFigures) -> dict[str, dict[str, int]]:
    kinds: dict[str, Duration] = {
        "compute_infer": figures.compute_infer,
        "compute_output": figures.compute_output,
        "success": figures.success,
        "fail": figures.fail,
        "empty_response": figures.empty_response,
        "cancel": figures.cancel,
    }
    return {name: _duration(each.count, each.ns) for name, each in kinds.items()}
