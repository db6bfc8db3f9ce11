"""The response cache on the metrics page: the cache's statistics, and those of each model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pybackend.engine.figures import VersionFigures
from pybackend.frontend.metrics.model_lines import ModelLabels
from pybackend.model.cache.response_cache import CacheFigures, ResponseCache
from pybackend.model.statistics import ModelStatistics
from pybackend.observability.metrics import Family

_NS_PER_US = 1000

_OF_MODELS: tuple[tuple[str, str, Callable[[ModelStatistics], float]], ...] = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda figures: figures.cache_hit_count),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", lambda figures: figures.cache_miss_count),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda figures: figures.cache_hit_ns // _NS_PER_US,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss duration per model, in microseconds",
        lambda figures: figures.cache_miss_ns // _NS_PER_US,
    ),
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
    (
        "nv_cache_lookup_duration",
        "Total cache lookup duration (hit and miss), in microseconds",
        lambda figures: figures.lookup_ns // _NS_PER_US,
    ),
    (
        "nv_cache_insertion_duration",
        "Total cache insertion duration, in microseconds",
        lambda figures: figures.insertion_ns // _NS_PER_US,
    ),
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
