"""Public facts about a model version, and about one of its instances."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.stacks import Stack
from pybackend.model.model import Model
from pybackend.model.statistics import BatchFigures, Duration, ModelStatistics, ResponseFigures
from pybackend.modelconfig.signature import ModelSignature


@dataclass(frozen=True)
class ModelDescription:
    """The current state of one version."""

    versions: Sequence[str]  # decimal, ascending: all serving versions, or only the version requested by number
    platform: str  # the configuration's ``platform``, or the name of its backend
    signature: ModelSignature
    document: Mapping[str, Any]
    confinement: Mapping[str, Any] | None  # the confinement of its processes, None if they are not confined
    # the Python environment that it brings, None if it runs on the server's Python
    environment: Mapping[str, Any] | None


def instance_document(version: str, instance: ModelInstance, stacks: Sequence[Stack]) -> dict[str, Any]:
    """An instance as plain values: its process, what it executes, and its stacks, that of ``execute`` first."""
    executor = instance.executor
    oldest = executor.oldest
    return {
        "instance": instance.name,
        "version": version,
        "state": instance.state.value,
        "pid": instance.pid,
        "running": len(executor.running),
        "requests": 0 if oldest is None else len(oldest.pending),
        "oldest_s": executor.busy_ns(time.monotonic_ns()) / 1e9,
        "stacks": [asdict(stack) for stack in sorted(stacks, key=lambda stack: not stack.executes)],
    }


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
