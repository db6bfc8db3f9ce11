"""A model's custom metrics: operations become messages to the host, which keeps the values."""

from contextlib import suppress
from math import isfinite
from typing import Any, Callable, Dict, List, Optional

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.metrics import metric_failure
from pybackend_stub.host_calls import HostCalls, HostRefusal
from pybackend_wire.messages import MetricChange
from pybackend_wire.stub_messages import ChangeMetric, DropMetric, NewFamily, NewMetric, Question, ReadMetric


class StubMetrics:
    """Registers and reads with questions, changes with messages; the host handles both in the order they were sent."""

    def __init__(self, calls: HostCalls, instance_name: str) -> None:
        self._calls = calls
        self._instance_name = instance_name

    def create_family(self, name: str, description: str, kind: int) -> object:
        """Register a family; returns its handle."""
        return self._ask(
            "Error when creating MetricFamily: ", lambda number: NewFamily(number, name, description, int(kind))
        )

    def create(self, family: Any, labels: "Dict[str, str]", buckets: "Optional[List[float]]") -> object:
        """Register a series; returns its handle."""
        return self._ask("Error when creating Metric: ", lambda number: NewMetric(number, family, labels, buckets))

    def value(self, metric: Any) -> float:
        """Read a series."""
        return float(self._ask("Failed to get metric value: ", lambda number: ReadMetric(number, metric)))

    def change(self, metric: Any, change: MetricChange, value: float) -> None:
        """Change a series."""
        self._calls.send(ChangeMetric(metric, int(change), value if isfinite(value) else str(value)))

    def drop(self, handle: Any) -> None:
        """Release a series or a family. In a fork of this process copies of metrics are not the model's."""
        if not self._calls.is_inherited():
            with suppress(TritonModelException, OSError):  # the host is gone, or the channel to it is closed
                self._calls.send(DropMetric(handle))

    def _ask(self, what: str, make: "Callable[[int], Question]") -> Any:
        try:
            return self._calls.ask(make)
        except HostRefusal as refusal:
            raise metric_failure(what, self._instance_name, refusal.message) from None
