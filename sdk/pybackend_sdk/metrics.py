"""Custom metrics: series on the server's metrics page that a model counts."""

from enum import IntEnum
from typing import Any, ClassVar, Dict, List, Optional

from pybackend_sdk.arguments import incompatible, text
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import current_runtime


class MetricKind(IntEnum):
    """What a family of metrics measures."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One series of a family; from ``family.Metric(...)`` only.

    Every method raises ``TypeError`` for a value that is no number, and ``TritonModelException`` for an operation that
    the kind of metric does not have.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_family", "_handle")

    _family: "MetricFamily"
    _handle: object

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined! Use MetricFamily.Metric(labels=...).")

    @classmethod
    def _create(cls, family: "MetricFamily", handle: object) -> "Metric":
        metric = cls.__new__(cls)
        metric._family = family
        metric._handle = handle
        return metric

    def increment(self, value: float) -> None:
        """Add to a counter (no negative values) or a gauge."""
        current_runtime().increment_metric(self._handle, _number("increment", value))

    def set(self, value: float) -> None:
        """Set a gauge."""
        current_runtime().set_metric(self._handle, _number("set", value))

    def observe(self, value: float) -> None:
        """Add an observation to a histogram."""
        current_runtime().observe_metric(self._handle, _number("observe", value))

    def value(self) -> float:
        """The counter's or gauge's value, whoever changed it."""
        return current_runtime().metric_value(self._handle)


class MetricFamily:
    """Metrics of one name that differ by their labels.

    Args:
        name: the name on the metrics page.
        description: its help text.
        kind: ``MetricFamily.COUNTER``, ``GAUGE`` or ``HISTOGRAM``.

    Raises:
        TypeError: an argument of another type.
        TritonModelException: the server does not register the family.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_handle", "_kind")

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(kind, MetricKind):
            incompatible("MetricFamily", "kind", "a MetricKind, e.g. MetricFamily.COUNTER", kind)
        self._kind = kind
        self._handle = current_runtime().create_metric_family(
            text("MetricFamily", "name", name), text("MetricFamily", "description", description), kind
        )

    def Metric(  # noqa: N802  the field's own name
        self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None
    ) -> Metric:
        """Register a series of this family.

        Args:
            labels: label names to values; None for a series without labels.
            buckets: upper bounds of a histogram's buckets, strictly increasing; for histograms only, and required.

        Raises:
            TritonModelException: labels or buckets are wrong, or the server does not register the series.
        """
        checked_labels = _checked_labels(labels)
        checked_buckets = _checked_buckets(buckets, self._kind)
        return Metric._create(self, current_runtime().create_metric(self._handle, checked_labels, checked_buckets))


def _number(call: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        incompatible(call, "value", "a number", value)


def _checked_labels(labels: Any) -> Dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary. It maps str to str.")
    return dict(labels)


def _checked_buckets(buckets: Any, kind: MetricKind) -> Optional[List[float]]:
    if buckets is None:
        if kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return None
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        raise TritonModelException("Failed to create metric. Unexpected buckets found.")
    return [_number("Metric", bound) for bound in buckets]
