"""A model's custom metrics: what the SDK leaves to a runtime, as messages to the host, which keeps the values."""

import os
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.metrics import metric_failure
from pybackend_stub.host_calls import HostCalls, HostRefusal
from pybackend_wire.messages import MetricChange, StubMessage

if TYPE_CHECKING:
    from pybackend_sdk.metrics import MetricKind


class StubMetrics:
    """Registers and reads by asking, changes by telling: the host handles both in the order in which they were sent."""

    def __init__(self, calls: HostCalls, instance_name: str) -> None:
        self._calls = calls
        self._instance_name = instance_name
        self._pid = os.getpid()

    def create_family(self, name: str, description: str, kind: "MetricKind") -> object:
        """Register a family; returns its handle."""
        return self._ask("Error when creating MetricFamily: ", StubMessage.NEW_FAMILY, name, description, int(kind))

    def create(self, family: object, labels: "Dict[str, str]", buckets: "Optional[List[float]]") -> object:
        """Register a series; returns its handle."""
        return self._ask("Error when creating Metric: ", StubMessage.NEW_METRIC, family, labels, buckets)

    def value(self, metric: object) -> float:
        """Read a series."""
        return float(self._ask("Failed to get metric value: ", StubMessage.READ_METRIC, metric))

    def change(self, metric: object, change: MetricChange, value: float) -> None:
        """Change a series."""
        self._calls.tell(StubMessage.CHANGE_METRIC, metric, int(change), value if isfinite(value) else str(value))

    def drop(self, handle: object) -> None:
        """Let go of a series or a family. A copy of a metric in a fork of this process is not the model's."""
        if os.getpid() == self._pid:
            with suppress(TritonModelException, OSError):  # the host is gone, or the channel to it closed
                self._calls.tell(StubMessage.DROP_METRIC, handle)

    def _ask(self, what: str, kind: StubMessage, *fields: Any) -> Any:
        try:
            return self._calls.ask(kind, *fields)
        except HostRefusal as refusal:
            raise metric_failure(what, self._instance_name, refusal.message) from None
