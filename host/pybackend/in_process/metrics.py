"""Metrics of the caller's own on the metrics page, by the names of the reference: they belong to the process, and all its servers show them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, IntEnum

from pybackend.errors import InferenceError
from pybackend.in_process.errors import InvalidArgumentError, error_of
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend_wire.messages import MetricChange
from pybackend_wire.messages import MetricKind as WireKind

CALLERS_METRICS = CustomMetrics()

_lock = threading.RLock()  # a metric may be deleted anywhere, even by the garbage collector meanwhile


class MetricKind(IntEnum):
    """Kinds of families."""

    COUNTER = WireKind.COUNTER
    GAUGE = WireKind.GAUGE


class MetricFormat(Enum):
    """The form of the metrics page."""

    PROMETHEUS = "prometheus"


@contextmanager
def _alone() -> Iterator[None]:
    """Nobody else changes the registry. Raises TritonError instead of the registry's errors."""
    with _lock:
        try:
            yield
        except InferenceError as error:
            raise error_of(error) from None


class MetricFamily:
    """Metrics that share a name and differ by their labels.

    Raises TritonError: the name is wrong, or taken by another kind.
    """

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        self.kind = MetricKind(kind)
        with _alone():
            self._handle = CALLERS_METRICS.new_family(
                self, None, "of this program", name, description, WireKind(self.kind)
            )

    @property
    def handle(self) -> int:
        """Its number in the registry."""
        return self._handle


class Metric:
    """A counter or a gauge, on the page as long as this object exists. Objects with equal labels share the value."""

    def __init__(self, family: MetricFamily, labels: Mapping[str, str] | None = None) -> None:
        self._family = family
        with _alone():
            self._handle = CALLERS_METRICS.new_series(family, family.handle, dict(labels or {}), None)

    @property
    def kind(self) -> MetricKind:
        """That of its family."""
        return self._family.kind

    @property
    def value(self) -> float:
        """The value now."""
        with _alone():
            return CALLERS_METRICS.value(self._family, self._handle)

    def increment(self, value: float) -> None:
        """Add to the value. Raises InvalidArgumentError: a counter would become smaller."""
        if self.kind is MetricKind.COUNTER and not value >= 0:
            raise InvalidArgumentError(f"a counter only grows: {value!r} cannot be added to it, use a gauge")
        self._change(MetricChange.INCREMENT, value)

    def set_value(self, value: float) -> None:
        """Set a gauge. Raises InvalidArgumentError: it is a counter."""
        if self.kind is MetricKind.COUNTER:
            raise InvalidArgumentError("a counter only grows, it cannot be set: use a gauge, or increment()")
        self._change(MetricChange.SET, value)

    def _change(self, change: MetricChange, value: float) -> None:
        with _alone():
            CALLERS_METRICS.change(self._family, self._handle, change, float(value))

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            with _lock:
                CALLERS_METRICS.drop(self._family, self._handle)
