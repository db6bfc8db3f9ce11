"""Distributions of latencies: those of the last executions, and those of all parts of a request, which cost 1.5 us a request."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil, nan

from pybackend.inference.pending import PendingRequest, ResponsePath
from pybackend.inference.response import InferenceResponse
from pybackend.instance.execution import ExecutionTimes
from pybackend.modelconfig.schema import ModelConfig

FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"

DEFAULT_BOUNDS_MS: Sequence[float] = (100, 500, 2000, 5000)
"""The reference's bounds of that histogram."""

_SLICE_NS = 10_000_000_000
_MOST_SLICES = 6
"""Quantiles describe the last 50 to 60 seconds."""

_MANTISSA_BITS = 6
"""Values are counted by their six leading bits, so that a quantile is exact to 1/64 of its value."""


_MOST_RECENT = 512

_RECENT_SHARES = ("0.5", 0.5), ("0.99", 0.99)


class QuantileWindow:
    """Quantiles of recent values, which it counts by their leading bits: any number of them takes the same memory."""

    __slots__ = ("_counts", "_number", "_slices")

    def __init__(self) -> None:
        self._slices: deque[tuple[int, dict[int, int]]] = deque(maxlen=_MOST_SLICES)
        self._number = -1
        self._counts: dict[int, int] = {}

    def add(self, value_ns: int, now_ns: int) -> None:
        """Count a non-negative value."""
        number = now_ns // _SLICE_NS
        if number != self._number:
            self._number, self._counts = number, {}
            self._slices.append((number, self._counts))
        shift = max(0, value_ns.bit_length() - _MANTISSA_BITS)
        key = shift << _MANTISSA_BITS | value_ns >> shift
        self._counts[key] = self._counts.get(key, 0) + 1

    def quantiles_ns(self, shares: Sequence[float], now_ns: int) -> Iterator[float]:
        """The values below which these shares of all recent values lie, NaN if there are none."""
        oldest = now_ns // _SLICE_NS - _MOST_SLICES
        merged: dict[int, int] = {}
        for number, counts in self._slices:
            if number > oldest:
                for key, count in counts.items():
                    merged[key] = merged.get(key, 0) + count
        total, keys = sum(merged.values()), sorted(merged)
        for share in shares:
            left = ceil(share * total)
            for key in keys:
                left -= merged[key]
                if left <= 0:
                    yield _middle(key)
                    break
            else:
                yield nan


def _middle(key: int) -> float:
    """The middle of the values that are counted under a key."""
    shift = key >> _MANTISSA_BITS
    lowest = (key & ((1 << _MANTISSA_BITS) - 1)) << shift
    return lowest + ((1 << shift) - 1) / 2


class RecentTimes:
    """Quantiles of the last few values, at the price of an append for each.

    They are sorted only when somebody reads them.
    """

    __slots__ = ("_count", "_figures", "_times_ns", "add")

    def __init__(self) -> None:
        self._times_ns: deque[int] = deque(maxlen=_MOST_RECENT)
        self._count = 0
        self._figures: tuple[tuple[str, float], ...] = ()
        self.add = self._times_ns.append  # takes a value in nanoseconds

    def quantiles_s(self, count: int) -> tuple[tuple[str, float], ...]:
        """Shares, and the values in seconds below which they lie; empty if there are none.

        While the count of all values so far stays the same, so do they.
        """
        if count != self._count:
            ordered = sorted(self._times_ns)
            self._figures = tuple(
                (text, ordered[ceil(share * len(ordered)) - 1] / 1e9) for text, share in _RECENT_SHARES if ordered
            )
            self._count = count
        return self._figures


class LatencySummaries:
    """The recent latencies of one version, by the part of a request's life."""

    def __init__(self) -> None:
        self.request = QuantileWindow()
        self.queue = QuantileWindow()
        self.compute_input = QuantileWindow()
        self.compute_infer = QuantileWindow()
        self.compute_output = QuantileWindow()
        self.cache_hit = QuantileWindow()
        self.cache_miss = QuantileWindow()

    def add(self, queued_ns: int, times: ExecutionTimes, now_ns: int, output_ns: int) -> None:
        """Count a request that was executed; ``output_ns`` is the time that its outputs took."""
        began_ns, start_ns, end_ns = times
        self.request.add(now_ns - queued_ns, now_ns)
        self.queue.add(began_ns - queued_ns, now_ns)
        self.compute_input.add(start_ns - began_ns, now_ns)
        self.compute_infer.add(end_ns - start_ns, now_ns)
        self.compute_output.add(output_ns, now_ns)


class FirstResponses:
    """A histogram of the times from requests to their first responses, and a stage of the response path.

    Errors are left out: a model that fails fast is no fast model.
    """

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        self.bounds_ms = bounds_ms  # upper bounds of its buckets, ascending
        self.counts = [0] * (len(bounds_ms) + 1)  # responses by bucket; the last one has no bound
        self.sum_ns = 0  # of all times
        self._streams: set[PendingRequest] = set()

    def stage(self, pass_on: ResponsePath) -> ResponsePath:
        """The stage in front of ``pass_on``; see :mod:`pybackend.inference.pending`."""

        def on_response(pending: PendingRequest, response: InferenceResponse) -> None:
            is_first = pending not in self._streams
            if response.final:
                self._streams.discard(pending)
            elif is_first:
                self._streams.add(pending)
            if is_first and response.error is None and not response.empty:
                self._observe(time.monotonic_ns() - pending.request.queued_ns)
            pass_on(pending, response)

        return on_response

    def _observe(self, took_ns: int) -> None:
        self.sum_ns += took_ns
        self.counts[bisect_left(self.bounds_ms, took_ns / 1e6)] += 1


def first_response_bounds_ms(config: ModelConfig) -> Sequence[float]:
    """The bounds of a version's histogram: those of its configuration, or the default ones."""
    for control in config.document.get("model_metrics", {}).get("metric_control", ()):
        if control["metric_identifier"]["family"] == FIRST_RESPONSE_FAMILY:
            return sorted(control["histogram_options"]["buckets"])
    return DEFAULT_BOUNDS_MS
