"""The value of one series of custom metrics, stored by prometheus-client and shown under the model's name for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from pybackend_wire.messages import MetricKind

Sample = tuple[str, dict[str, str], float]
"""Suffix of the family's name, labels beyond the series' own, value."""


class _ValueSeries:
    """A series with one value."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def increment(self, value: float) -> None:
        """Add a value; for a counter, one that is not negative."""
        self._metric.inc(value)

    @property
    def value(self) -> float:
        """The current value."""
        return next(float(sample.value) for sample in _samples(self._metric) if not sample.name.endswith("_created"))

    def samples(self) -> list[Sample]:
        return [("", {}, self.value)]


class CounterSeries(_ValueSeries):
    """A value that only grows."""

    def __init__(self) -> None:
        super().__init__(_prometheus().Counter(_NAME, "", registry=None))


class GaugeSeries(_ValueSeries):
    """A value that goes up and down."""

    def __init__(self) -> None:
        super().__init__(_prometheus().Gauge(_NAME, "", registry=None))

    def set(self, value: float) -> None:
        """Replace the value."""
        self._metric.set(value)


class HistogramSeries:
    """A histogram of observations.

    Args:
        buckets: finite upper bounds, strictly increasing; may be empty.
    """

    def __init__(self, buckets: Sequence[float]) -> None:
        # The library requires at least one bound, and hides the sum if a bound is negative.
        self._histogram = _prometheus().Histogram(_NAME, "", buckets=buckets or (0.0,), registry=None)
        self._has_bounds = bool(buckets)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count an observation."""
        self._histogram.observe(value)
        self._sum += value

    def samples(self) -> list[Sample]:
        samples = [(sample.labels["le"], sample.value) for sample in _samples(self._histogram) if "le" in sample.labels]
        shown = samples if self._has_bounds else samples[-1:]
        buckets = [("_bucket", {"le": bound.removesuffix(".0")}, count) for bound, count in shown]
        return [*buckets, ("_sum", {}, self._sum), ("_count", {}, samples[-1][1])]


Series = CounterSeries | GaugeSeries | HistogramSeries


def new_series(kind: MetricKind, buckets: Sequence[float]) -> Series:
    """A series of this kind; only a histogram has ``buckets``."""
    match kind:
        case MetricKind.COUNTER:
            return CounterSeries()
        case MetricKind.GAUGE:
            return GaugeSeries()
        case MetricKind.HISTOGRAM:
            return HistogramSeries(buckets)


_NAME = "series"
"""Name of the library's objects. It is never shown: the library would alter some of the names that models give."""


def _samples(metric: Any) -> list[Any]:
    return [sample for collected in metric.collect() for sample in collected.samples]


@cache
def _prometheus() -> Any:
    """The library; imported on first use, because that takes a twentieth of a second."""
    with _in_this_process():
        import prometheus_client
    return prometheus_client


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Hide the variables that make the library store its values in files.

    They may be set for a model that runs its own multi-process server; our values would mix with those of all processes
    that use the same files.
    """
    names = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
