"""Custom metrics: a model's own series on the server's metrics page.

This module refuses operations that a kind of metric does not support; the runtime carries out the others.
"""

import sys
from typing import Any, ClassVar, Dict, List, Optional, Set, SupportsFloat

from pybackend_sdk.arguments import incompatible, text
from pybackend_sdk.error import TritonModelException, printable
from pybackend_sdk.runtime import Runtime, current_runtime
from pybackend_wire.messages import MetricKind
from pybackend_wire.metric_rules import family_problem, series_problem

__all__ = ["Metric", "MetricFamily", "MetricKind", "metric_failure"]

_CREATE_FAMILY = "Error when creating MetricFamily: "
_CREATE = "Error when creating Metric: "
_INCREMENT = "Failed to increment metric value: "
_SET = "Failed to set metric value: "
_OBSERVE = "Failed to observe metric value: "
_GET = "Failed to get metric value: "

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


def metric_failure(what: str, instance_name: str, reason: str) -> TritonModelException:
    """Return the exception for an operation that failed.

    ``what`` begins the message, e.g. ``"Failed to get metric value: "``.
    """
    return TritonModelException(f"{what}Failed to process the request for model '{instance_name}', message: {reason}")


class _Registration:
    """A family as the runtime knows it, with its live series; metrics refer to this object and not to the family.

    Deletion happens wherever the garbage collector runs: in any thread, and between any two lines of this process. So
    nothing here takes a lock; the thread that removes a handle from ``live`` is the one that drops it.
    """

    __slots__ = ("deleted", "handle", "kind", "live", "runtime")

    def __init__(self, runtime: Runtime, handle: object, kind: MetricKind) -> None:
        self.runtime = runtime
        self.handle = handle
        self.kind = kind
        self.live: Set[object] = set()
        self.deleted = False

    def delete(self) -> None:
        """Drop the family, and its metrics with it."""
        self.deleted = True
        while self.live:
            try:
                handle = self.live.pop()
            except KeyError:  # another thread took it
                break
            self._drop(handle)
        self._drop(self.handle)

    def delete_metric(self, handle: object) -> None:
        """Drop one metric, unless its family was dropped before."""
        try:
            self.live.remove(handle)
        except KeyError:
            return
        self._drop(handle)

    def _drop(self, handle: object) -> None:
        # At exit the runtime forgets everything anyway, and a thread that no longer runs may hold one of its locks.
        if not sys.is_finalizing():
            self.runtime.drop_metric(handle)

    def use(self, what: str, *, unless: "Optional[str]") -> Runtime:
        """Return the runtime for an operation on a metric of this family; ``unless`` is a reason to refuse."""
        if self.deleted:
            raise TritonModelException(_DELETED)
        if unless is not None:
            raise metric_failure(what, self.runtime.instance_name, unless)
        return self.runtime


class Metric:
    """One series of a family; made by ``family.Metric(...)`` only.

    The family must live as long as its metrics are used: keep both. The series leaves the metrics page when the last
    Metric with that name and those labels is deleted, across all instances and models.

    Every method raises ``TypeError`` if a value is not a number, and ``TritonModelException`` if the kind of metric
    does not support the operation or the family is deleted.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_family", "_handle")

    _family: _Registration
    _handle: object

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined! Use MetricFamily.Metric(labels=...).")

    @classmethod
    def _create(cls, family: _Registration, handle: object) -> "Metric":
        metric = cls.__new__(cls)
        metric._family = family
        metric._handle = handle
        family.live.add(handle)
        return metric

    def increment(self, value: SupportsFloat) -> None:
        """Add to a counter (non-negative values only) or a gauge."""
        number, kind, unless = _number("increment", value), self._family.kind, None
        if kind is MetricKind.HISTOGRAM:
            unless = _unsupported(kind, "Increment")
        elif kind is MetricKind.COUNTER and not number >= 0:
            unless = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
        self._family.use(_INCREMENT, unless=unless).increment_metric(self._handle, number)

    def set(self, value: SupportsFloat) -> None:
        """Set a gauge."""
        number, kind = _number("set", value), self._family.kind
        unless = None if kind is MetricKind.GAUGE else _unsupported(kind, "Set")
        self._family.use(_SET, unless=unless).set_metric(self._handle, number)

    def observe(self, value: SupportsFloat) -> None:
        """Add an observation to a histogram."""
        number, kind, unless = _number("observe", value), self._family.kind, None
        if kind is not MetricKind.HISTOGRAM:
            unless = _unsupported(kind, "Observe")
        elif number != number:  # noqa: PLR0124  NaN
            unless = "NaN is in no bucket of a histogram."
        self._family.use(_OBSERVE, unless=unless).observe_metric(self._handle, number)

    def value(self) -> float:
        """Return the value of a counter or gauge, including changes by other instances and models."""
        kind = self._family.kind
        unless = _unsupported(kind, "Value") if kind is MetricKind.HISTOGRAM else None
        return self._family.use(_GET, unless=unless).metric_value(self._handle)

    def __del__(self) -> None:
        family = getattr(self, "_family", None)
        if family is not None:
            family.delete_metric(self._handle)


class MetricFamily:
    """Metrics that share a name and differ by their labels. Deleting the family deletes its metrics.

    Args:
        name: the name on the metrics page.
        description: its help text.
        kind: ``MetricFamily.COUNTER``, ``GAUGE`` or ``HISTOGRAM``.

    Raises:
        TypeError: an argument has the wrong type.
        TritonModelException: the server refuses the family.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_registration")

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(kind, MetricKind):
            incompatible("MetricFamily", "kind", "a MetricKind, e.g. MetricFamily.COUNTER", kind)
        name, description = text("MetricFamily", "name", name), text("MetricFamily", "description", description)
        runtime = current_runtime().itself()
        problem = family_problem(name, description)
        if problem is not None:
            raise metric_failure(_CREATE_FAMILY, runtime.instance_name, problem)
        self._registration = _Registration(runtime, runtime.create_metric_family(name, description, kind), kind)

    def Metric(  # noqa: N802  the field's own name
        self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None
    ) -> Metric:
        """Register a series of this family, or share the existing one with the same labels.

        Args:
            labels: label names to values; None for a series without labels.
            buckets: upper bounds of a histogram's buckets, strictly increasing; for histograms only, and required. An
                existing series keeps its own.

        Raises:
            TritonModelException: labels or buckets are wrong, or the server refuses the series.
        """
        registration = self._registration
        checked_labels = _checked_labels(labels)
        checked_buckets = _checked_buckets(buckets, registration.kind)
        runtime = registration.use(_CREATE, unless=series_problem(registration.kind, checked_labels, checked_buckets))
        return Metric._create(registration, runtime.create_metric(registration.handle, checked_labels, checked_buckets))

    def __del__(self) -> None:
        registration = getattr(self, "_registration", None)
        if registration is not None:
            registration.delete()


def _unsupported(kind: MetricKind, operation: str) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name} does not support {operation}"


def _number(call: str, value: Any) -> float:
    if isinstance(value, (str, bytes, bytearray)):
        incompatible(call, "value", "a number", value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        incompatible(call, "value", "a number", value)


def _checked_labels(labels: Any) -> Dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary. It maps str to str.")
    return {name: printable(value) for name, value in labels.items()}


def _checked_buckets(buckets: Any, kind: MetricKind) -> Optional[List[float]]:
    if buckets is None:
        if kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return None
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        raise TritonModelException("Failed to create metric. Unexpected buckets found.")
    bounds = [_number("Metric", bound) for bound in buckets]
    if bounds and bounds[-1] == float("inf"):
        bounds.pop()  # every histogram has this bucket anyway
    return bounds
