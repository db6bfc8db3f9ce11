"""Families that only some servers show: the distributions of latencies, the response cache, and front ends."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from pybackend.engine.figures import VersionFigures
from pybackend.frontend.metrics.model_lines import ModelLabels
from pybackend.model.cache.response_cache import CacheFigures, ResponseCache
from pybackend.model.latencies import FIRST_RESPONSE_FAMILY
from pybackend.model.statistics import ModelStatistics
from pybackend.observability.machine import ProcessUsage
from pybackend.observability.metrics import Family, Sample, labels_text
from pybackend.settings import MetricsSettings

_NS_PER_US = 1000


class FrontEndFigures(NamedTuple):
    """One front end; ``pid`` is 0 while there is no process."""

    name: str
    pid: int
    connections: int
    restarts: int


_Labelled = Sequence[tuple[ModelLabels, VersionFigures]]

_SUMMARIES = (
    (
        "nv_inference_request_summary_us",
        "request",
        "success_count",
        "success_ns",
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_queue_summary_us",
        "queue",
        "success_count",
        "queue_ns",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_compute_input_summary_us",
        "compute_input",
        "executed_count",
        "compute_input_ns",
        "Summary of compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "compute_infer",
        "executed_count",
        "compute_infer_ns",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_output_summary_us",
        "compute_output",
        "executed_count",
        "compute_output_ns",
        "Summary of inference compute output duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_cache_hit_summary_per_model",
        "cache_hit",
        "cache_hit_count",
        "cache_hit_ns",
        "Summary of cache hit duration per model, in microseconds",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "cache_miss",
        "cache_miss_count",
        "cache_miss_ns",
        "Summary of cache miss duration per model, in microseconds",
    ),
)
"""Summaries: name, attribute of the recent values, attributes of the statistics for the number and the sum of all
values, help text."""

_CACHE_SUMMARIES = "nv_cache_"
_WITHOUT_CACHE = "nv_inference_request_summary_us"


class LatencyFamilies:
    """Writes the distributions of latencies, for servers that show them."""

    def __init__(self, settings: MetricsSettings, labels_of: Callable[[VersionFigures], ModelLabels]) -> None:
        self._settings = settings
        self._labels_of = labels_of

    def of(self, versions: Sequence[VersionFigures]) -> Iterator[Family]:
        labelled = [(self._labels_of(version), version) for version in versions]
        if self._settings.histogram_latencies:
            yield Family(
                FIRST_RESPONSE_FAMILY,
                "histogram",
                "Duration from request to first response in milliseconds",
                _first_responses(labelled),
            )
        if self._settings.summary_latencies:
            yield from self._summaries(labelled)

    def _summaries(self, versions: _Labelled) -> Iterator[Family]:
        any_cached = any(version.config.response_cache_enabled for _, version in versions)
        for name, window, count, total, text in _SUMMARIES:
            if name.startswith(_CACHE_SUMMARIES):
                if any_cached:
                    cached = [each for each in versions if each[1].config.response_cache_enabled]
                    yield Family(name, "summary", text, self._summary(cached, window, count, total))
                continue
            shown = versions
            if name == _WITHOUT_CACHE:
                shown = [each for each in versions if not each[1].config.response_cache_enabled]
                if any_cached and not shown:
                    continue
            yield Family(name, "summary", text, self._summary(shown, window, count, total))

    def _summary(self, versions: _Labelled, window: str, count: str, total: str) -> Iterator[Sample]:
        shares = self._settings.summary_quantiles
        for labels, version in versions:
            statistics = version.statistics
            if statistics.summaries is None:
                continue
            quantiles_ns = getattr(statistics.summaries, window).quantiles_ns(shares, time.monotonic_ns())
            for share, value_ns in zip(shares, quantiles_ns, strict=True):
                yield "", labels.with_label("quantile", f"{share:g}"), value_ns / _NS_PER_US
            yield "_sum", labels.plain, getattr(statistics, total) / _NS_PER_US
            yield "_count", labels.plain, getattr(statistics, count)


def _first_responses(versions: _Labelled) -> Iterator[Sample]:
    for labels, version in versions:
        histogram = version.statistics.first_responses
        if histogram is None:
            continue
        bounds = [*(f"{bound:g}" for bound in histogram.bounds_ms), "+Inf"]
        counts = list(accumulate(histogram.counts))
        for bound, count in zip(bounds, counts, strict=True):
            yield "_bucket", labels.with_label("le", bound), count
        yield "_sum", labels.plain, histogram.sum_ns / 1e6
        yield "_count", labels.plain, counts[-1]


def _us(attribute: str) -> Callable[[object], int]:
    """Reads nanoseconds as whole microseconds."""
    nanoseconds: Callable[[object], int] = attrgetter(attribute)
    return lambda figures: nanoseconds(figures) // _NS_PER_US


_OF_MODELS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda figures: figures.cache_hit_count),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", lambda figures: figures.cache_miss_count),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds", _us("cache_hit_ns")),
    ("nv_cache_miss_duration_per_model", "Total cache miss duration per model, in microseconds", _us("cache_miss_ns")),
)
"""Counters of models: name, help text, value."""

_OF_CACHES: tuple[tuple[str, str, Callable[[CacheFigures], float]], ...] = (
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]", lambda figures: figures.used_bytes / figures.size_bytes),
    ("nv_cache_num_entries", "Number of responses stored in response cache", lambda figures: figures.entries),
    ("nv_cache_num_hits", "Number of cache hits in response cache", lambda figures: figures.hits),
    ("nv_cache_num_misses", "Number of cache misses in response cache", lambda figures: figures.misses),
    (
        "nv_cache_num_lookups",
        "Number of cache lookups in response cache",
        lambda figures: figures.hits + figures.misses,
    ),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache", lambda figures: figures.evictions),
    ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds", _us("lookup_ns")),
    ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", _us("insertion_ns")),
)
"""Gauges of a cache in this process: name, help text, value."""


def cache_families(
    cache: ResponseCache, versions: Sequence[VersionFigures], labels_of: Callable[[VersionFigures], ModelLabels]
) -> Iterator[Family]:
    """The metric families of a server with a cache."""
    using = [
        (labels_of(version).plain, version.statistics) for version in versions if version.config.response_cache_enabled
    ]
    if using:
        for name, text, of_model in _OF_MODELS:
            yield Family(name, "counter", text, [("", labels, of_model(statistics)) for labels, statistics in using])
    figures = cache.figures
    if figures is not None:
        for name, text, of_cache in _OF_CACHES:
            yield Family(name, "gauge", text, [("", "", of_cache(figures))])


def front_end_families(front_ends: Sequence[FrontEndFigures], usage: Mapping[int, ProcessUsage]) -> Iterator[Family]:
    """The processes that accept connections, if there are any."""
    if not front_ends:
        return
    rows = [(labels_text({"front_end": each.name}), each, usage.get(each.pid)) for each in front_ends]
    known = [(labels, used) for labels, _, used in rows if used is not None]
    yield Family(
        "pybackend_front_end_connections",
        "gauge",
        "Connections of clients that the front end has, as it said within the last seconds",
        [("", labels, each.connections) for labels, each, _ in rows],
    )
    yield Family(
        "pybackend_front_end_restarts_total",
        "counter",
        "How often a process has taken the place of one that ended",
        [("", labels, each.restarts) for labels, each, _ in rows],
    )
    yield from usage_families("pybackend_front_end", "the front end's process", known)


def usage_families(prefix: str, whose: str, rows: Sequence[tuple[str, ProcessUsage]]) -> Iterator[Family]:
    """The memory and the processor time of processes, by their labels."""
    yield Family(
        f"{prefix}_resident_bytes",
        "gauge",
        f"Memory of {whose} (Rss: shared pages count for each), in bytes",
        [("", labels, used.resident_bytes) for labels, used in rows],
    )
    yield Family(
        f"{prefix}_cpu_seconds_total",
        "counter",
        f"Processor time of {whose}, in seconds",
        [("", labels, used.cpu_s) for labels, used in rows],
    )
