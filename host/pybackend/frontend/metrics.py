"""The metrics endpoint: an ASGI application on its own port, filled from counters when the page is requested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from pybackend.cache.response_cache import ResponseCache
from pybackend.engine.refusals import Refusals
from pybackend.frontend.cache_metrics import cache_families
from pybackend.model.model import Model, ModelState
from pybackend.model.statistics import ModelStatistics
from pybackend.modelconfig.schema import Scheduling
from pybackend.observability.cpu import CpuMeter, memory_bytes
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend.observability.metrics import Family, lines
from pybackend.repository.repository import ModelRepository
from pybackend.scheduler.scheduler import BatchReason

PART_CHARACTERS = 128 * 1024
"""Size of the parts in which the page is written; each takes some milliseconds."""

_NS_PER_US = 1000

_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda statistics: statistics.success_count,
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda statistics: statistics.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda statistics: statistics.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda statistics: statistics.success_ns // _NS_PER_US,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda statistics: statistics.queue_ns // _NS_PER_US,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_input_ns // _NS_PER_US,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_infer_ns // _NS_PER_US,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_output_ns // _NS_PER_US,
    ),
)
"""Per-model counters: name, help text, value."""


class MetricsApp:
    """``GET /metrics`` in the text format of Prometheus: the server's own families, then those of the models."""

    def __init__(
        self,
        repository: ModelRepository,
        refusals: Refusals,
        custom_metrics: CustomMetrics,
        cache: ResponseCache | None,
    ) -> None:
        self._repository = repository
        self._refusals = refusals
        self._cache = cache
        self._custom_metrics = custom_metrics
        self._cpu = CpuMeter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["path"] not in {"/metrics", "/metrics/"}:
            status, body = 404, b"Not Found: the metrics are at /metrics\n"
        elif scope["method"] != "GET":
            status, body = 405, b"Method Not Allowed\n"
        else:
            await self._send_page(send)
            return
        await send(_start(status, (b"content-length", b"%d" % len(body))))
        await send({"type": "http.response.body", "body": body})

    async def _send_page(self, send: Any) -> None:
        """Send the page in parts: it is never in memory as a whole, and requests run between parts."""
        text = lines(self._families())
        body = _part(text)
        if len(body) < PART_CHARACTERS:
            await send(_start(200, (b"content-length", b"%d" % len(body))))
        else:
            await send(_start(200))
            while len(body) >= PART_CHARACTERS:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.sleep(0)
                body = _part(text)
        await send({"type": "http.response.body", "body": body})

    def _families(self) -> Iterator[Family]:
        models = [model for model in self._repository.models() if model.state is ModelState.READY]
        for name, text, value in _COUNTERS:
            yield Family(name, "counter", text, [(_labels(model), value(model.statistics)) for model in models])
        yield Family(
            "nv_inference_request_failure",
            "counter",
            "Number of failed inference requests, all batch sizes",
            [
                ({**_labels(model), "reason": reason.value}, count)
                for model in models
                for reason, count in model.statistics.failures.items()
            ],
        )
        yield Family(
            "pybackend_refused_requests_total",
            "counter",
            "Number of requests that were refused before a model accepted them",
            [(refusal._asdict(), count) for refusal, count in sorted(self._refusals.counts.items())],
        )
        yield Family(
            "nv_inference_pending_request_count",
            "gauge",
            "Instantaneous number of pending requests awaiting execution per-model.",
            [(_labels(model), model.pending_count) for model in models],
        )
        yield Family(
            "nv_model_load_duration_secs",
            "gauge",
            "Model load time in seconds",
            [(_labels(model), model.statistics.load_duration_ns / 1e9) for model in models],
        )
        batching = [model for model in models if model.config.scheduling is Scheduling.DYNAMIC_BATCHING]
        if batching:
            yield Family(
                "pybackend_batches_total",
                "counter",
                "Number of batches that the dynamic batcher has sent, by the reason why they did not grow",
                [
                    ({**_labels(model), "reason": reason.value}, model.statistics.batches[reason])
                    for model in batching
                    for reason in BatchReason
                ],
            )
        yield Family(
            "pybackend_model_output_dropped_lines_total",
            "counter",
            "Number of lines that models printed or logged and that the server's log did not take",
            [(_labels(model), sum(each.output.dropped_lines for each in model.instances)) for model in models],
        )
        confined = [(_labels(model), model.confinement) for model in models if model.confinement is not None]
        if confined:
            yield Family(
                "pybackend_sandbox_missing_layers",
                "gauge",
                "Number of layers of the model's sandbox that are not in force",
                [({**labels, "level": what["level"]}, len(what["not_in_force"])) for labels, what in confined],
            )
        if self._cache is not None:
            yield from cache_families(self._cache, [(_labels(model), model) for model in models])
        yield from self._machine()
        yield from self._custom_metrics.families()

    def _machine(self) -> Iterator[Family]:
        total_bytes, used_bytes = memory_bytes()
        for name, text, value in (
            # Without a GPU there is no pinned memory, but dashboards expect the family.
            ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0),
            ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0),
            ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._cpu.utilization()),
            ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total_bytes),
            ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used_bytes),
        ):
            yield Family(name, "gauge", text, [({}, value)])


def _start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    content_type = (b"content-type", b"text/plain; charset=utf-8")
    return {"type": "http.response.start", "status": status, "headers": [content_type, *headers]}


def _part(text: Iterator[str]) -> bytes:
    """The next lines; fewer than :data:`PART_CHARACTERS` only at the end."""
    taken, length = [], 0
    for line in text:
        taken.append(line)
        length += len(line)
        if length >= PART_CHARACTERS:
            break
    return "".join(taken).encode()


def _labels(model: Model) -> dict[str, str]:
    tags = {f"_{key}": value for key, value in model.config.metric_tags.items()}
    return {"model": model.name, "version": model.version, **tags}
