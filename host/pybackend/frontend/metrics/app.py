"""The metrics endpoint: an ASGI application on its own port, filled from counters when the page is requested."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from pybackend.engine.engine import InferenceEngine
from pybackend.engine.figures import VersionFigures
from pybackend.frontend.metrics.model_lines import ModelLines
from pybackend.frontend.metrics.optional_families import (
    FrontEndFigures,
    LatencyFamilies,
    cache_families,
    front_end_families,
    usage_families,
)
from pybackend.gpus import Gpus
from pybackend.model.cache.response_cache import ResponseCache
from pybackend.modelconfig.group_advice import CALLS_FAMILY
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend.observability.machine import BOUNDS_S, LoopLag, MachineMeter, ProcessUsage, open_gpu_meter, usage_of
from pybackend.observability.metrics import Family, Sample, labels_text, lines
from pybackend.settings import MetricsSettings

PART_CHARACTERS = 64 * 1024
"""Most characters of the parts in which the page is written, so that a slow reader keeps little memory."""

PART_S = 0.001
"""A part ends after this time, too, so that requests run."""


class MetricsApp:
    """``GET /metrics`` in the text format of Prometheus: the server's own families, then the custom ones.

    ``front_ends`` count what they answer; None if there are no such processes. ``groupable`` counts calls between
    models that could share a process, by the names of both.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        custom_metrics: Sequence[CustomMetrics],
        cache: ResponseCache | None,
        settings: MetricsSettings,
        gpus: Gpus,
        front_ends: Callable[[], Awaitable[Sequence[FrontEndFigures]]] | None,
        groupable: Callable[[], Sequence[tuple[tuple[str, str], int]]],
    ) -> None:
        self._engine = engine
        self._front_ends = front_ends
        self._groupable = groupable
        self._cache = cache
        self._custom_metrics = custom_metrics
        self._model_lines = ModelLines(with_latencies=settings.counter_latencies)
        self._latencies = LatencyFamilies(settings, self._model_lines.labels_of)
        self._lag = LoopLag()
        self._machine = MachineMeter(cpu=settings.cpu, gpus=open_gpu_meter(gpus) if settings.gpu else None)
        self._interval_s = settings.interval_s

    async def measure(self) -> None:
        """Take the figures that are no counters, until cancelled."""
        await asyncio.gather(self._lag.measure(), self._machine.watch(self._interval_s))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
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
        front_ends = () if self._front_ends is None else await self._front_ends()
        await self._engine.figures.ask_models()
        versions = self._engine.figures.versions()
        pids = [pid for version in versions for _, pid in version.processes] + [each.pid for each in front_ends]
        text = self._text(versions, front_ends, await asyncio.to_thread(usage_of, pids) if pids else {})
        body, is_last = _part(text)
        await send(_start(200, (b"content-length", b"%d" % len(body))) if is_last else _start(200))
        while not is_last:
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)
            body, is_last = _part(text)
        await send({"type": "http.response.body", "body": body})

    def _text(
        self,
        versions: Sequence[VersionFigures],
        front_ends: Sequence[FrontEndFigures],
        usage: Mapping[int, ProcessUsage],
    ) -> Iterator[str]:
        yield from lines([self._ready_family(), self._change_family()])
        yield from self._model_lines.text(versions)
        yield from lines(self._families(versions, usage))
        yield from lines(front_end_families(front_ends, usage))

    def _families(self, versions: Sequence[VersionFigures], usage: Mapping[int, ProcessUsage]) -> Iterator[Family]:
        yield from self._latencies.of(versions)
        yield from self._of_processes(versions, usage)
        yield from self._of_storage()
        yield from self._of_answers()
        yield from self._of_calls()
        yield _lag_family(self._lag)
        if self._cache is not None:
            yield from cache_families(self._cache, versions, self._model_lines.labels_of)
        yield from self._machine.families()
        seen: set[str] = set()
        for registry in self._custom_metrics:
            for family in registry.families():
                if family.name not in seen:  # of two registries the first has it
                    seen.add(family.name)
                    yield family

    def _ready_family(self) -> Family:
        text = "1 if the version is ready, 0 if it is not; models without a version have an empty one"
        return Family("pybackend_model_ready", "gauge", text, self._readiness())

    def _readiness(self) -> Iterator[Sample]:
        for row, version in self._engine.figures.known():
            if version is None:
                labels = {"model": row.name, "version": "", "state": row.state or "LOADING"}
                yield "", labels_text(labels | ({"namespace": row.namespace} if row.namespace else {})), 0
            else:
                state = "UNLOADED" if version.was_unloaded else row.state
                yield "", self._model_lines.labels_of(version).with_label("state", state), version.is_ready

    def _change_family(self) -> Family:
        samples = []
        for name, namespace, failed in self._engine.figures.changes():
            labels = labels_text({"model": name} | ({"namespace": namespace} if namespace else {}))
            samples.append(("", labels, float(failed)))
        text = "1 if the model as it is in the repository failed to load, and an earlier state of it serves"
        return Family("pybackend_model_change_failed", "gauge", text, samples)

    def _of_processes(self, versions: Sequence[VersionFigures], usage: Mapping[int, ProcessUsage]) -> Iterator[Family]:
        """Usage by instance: the time of each begins at 0 again when its process is replaced, which a sum would hide."""
        rows = [
            (self._model_lines.labels_of(version).with_label("instance_name", name), used)
            for version in versions
            for name, pid in version.processes
            if (used := usage.get(pid)) is not None
        ]
        yield from usage_families("pybackend_process", "the instance's process and of those that it started", rows)

    def _of_storage(self) -> Iterator[Family]:
        listings = [(labels_text({"repository": listing.place}), listing) for listing in self._engine.figures.listings]
        yield Family(
            "pybackend_repository_answers",
            "gauge",
            "1 if the repository in cloud storage answered when it was last asked, 0 if its last listing is in use",
            [("", labels, float(not listing.doubt)) for labels, listing in listings],
        )
        yield Family(
            "pybackend_repository_listed_timestamp_seconds",
            "gauge",
            "When the repository in cloud storage was last listed, in seconds since 1970",
            [("", labels, listing.listed_s) for labels, listing in listings],
        )

    def _of_calls(self) -> Iterator[Family]:
        counts = self._groupable()
        text = "Number of calls between models that could share a process, where a call takes longer than the work that it asks for"
        labels = ({"caller": caller, "called": called} for (caller, called), _ in counts)
        samples = [("", labels_text(each), count) for each, (_, count) in zip(labels, counts, strict=True)]
        if samples:
            yield Family(CALLS_FAMILY, "counter", text, samples)

    def _of_answers(self) -> Iterator[Family]:
        yield Family(
            "pybackend_answers_total",
            "counter",
            "Number of answers by the protocol of the sender and the code of the answer",
            [
                ("", labels_text({"protocol": protocol, "code": code}), count)
                for protocol, answers in self._engine.answers.items()
                for code, count in answers.counts()
            ],
        )
        yield Family(
            "pybackend_refused_requests_total",
            "counter",
            "Number of requests that were refused before a model accepted them",
            [
                ("", labels_text(refusal._asdict()), count)
                for refusal, count in sorted(self._engine.refusals.counts.items())
            ],
        )


def _lag_family(lag: LoopLag) -> Family:
    counts = list(accumulate(lag.counts))
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    samples: list[Sample] = [
        ("_bucket", labels_text({"le": bound}), count) for bound, count in zip(bounds, counts, strict=True)
    ]
    samples += [("_sum", "", lag.sum_s), ("_count", "", counts[-1])]
    text = "How late the server's event loop called a timer, measured four times a second, in seconds"
    return Family("pybackend_event_loop_lag_seconds", "histogram", text, samples)


def _start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    content_type = (b"content-type", b"text/plain; charset=utf-8")
    return {"type": "http.response.start", "status": status, "headers": [content_type, *headers]}


def _part(text: Iterator[str]) -> tuple[bytes, bool]:
    """The next pieces of the page, and whether they are the last."""
    taken, length, end_s = [], 0, time.monotonic() + PART_S
    for piece in text:
        taken.append(piece)
        length += len(piece)
        if length >= PART_CHARACTERS or time.monotonic() > end_s:
            return "".join(taken).encode(), False
    return "".join(taken).encode(), True
