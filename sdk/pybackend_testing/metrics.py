"""Custom metrics of models under test: one registry for all models that can call each other, as in a server."""

import threading
from bisect import bisect_left
from collections import deque
from itertools import count
from typing import Any, Deque, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from pybackend_stub.host_calls import HostRefusal
from pybackend_wire.errors import ErrorCode
from pybackend_wire.messages import MetricChange, MetricKind

_Labels = FrozenSet[Tuple[str, str]]


class _Series:
    def __init__(self, name: str, labels: Dict[str, str], bounds: "Optional[List[float]]") -> None:
        self.name = name
        self.labels = labels
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if bounds is not None else []
        self.value = 0.0
        self.holders = 0

    def samples(self) -> Iterator[Tuple[str, float]]:
        name = self.name
        if self.bounds is None:
            yield sample_name(name, self.labels), self.value
            return
        below = 0
        for bound, inside in zip([*map(_shown, self.bounds), "+Inf"], self.counts):
            below += inside
            yield sample_name(name + "_bucket", {**self.labels, "le": bound}), below
        yield sample_name(name + "_sum", self.labels), self.value
        yield sample_name(name + "_count", self.labels), below


class MetricRegistry(Mapping[str, float]):
    """Every sample by its name and labels, as on the server's metrics page: ``{'asked_total{model="m"}': 2.0}``.

    A histogram has samples ``<name>_bucket{le="..."}``, ``<name>_sum`` and ``<name>_count``. Labels are in alphabetical
    order. :meth:`value` builds these names.

    Attributes:
        dropped: handles that the garbage collector has found.
    """

    def __init__(self) -> None:
        self.dropped: Deque[int] = deque()
        self._held: Dict[int, Any] = {}
        self._handles = count(1)
        self._families: Dict[str, MetricKind] = {}
        self._series: Dict[Tuple[str, _Labels], _Series] = {}
        self._lock = threading.RLock()

    # For tests

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample.

        Raises:
            KeyError: there is no such sample; the message lists the existing ones.
        """
        return self[sample_name(name, labels)]

    def __getitem__(self, name: str) -> float:
        samples = self._samples()
        if name not in samples:
            raise KeyError(f"there is no metric {name}; there are: {', '.join(sorted(samples)) or 'none'}")
        return samples[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples())

    def __len__(self) -> int:
        return len(self._samples())

    def __repr__(self) -> str:
        return f"MetricRegistry({self._samples()})"

    def _samples(self) -> Dict[str, float]:
        with self._lock:
            self._forget_dropped()
            return {name: value for series in self._series.values() for name, value in series.samples()}

    # For models: the messages about metrics

    def create_family(self, name: str, number: int) -> int:
        """Register a family, or find the existing one of that name; returns a handle."""
        kind = MetricKind(number)
        with self._lock:
            known = self._families.setdefault(name, kind)
            if known != kind:
                raise HostRefusal(
                    f"metric family '{name}' is registered as a {known.name.lower()}, it cannot be a {kind.name.lower()} too.",
                    ErrorCode.INVALID_ARG,
                )
            return self._handle(name)

    def create(self, family: int, labels: Dict[str, str], bounds: "Optional[List[float]]") -> int:
        """Register a series, or share the existing one with these labels; returns a handle."""
        with self._lock:
            self._forget_dropped()
            name: str = self._held[family]
            series = self._series.setdefault((name, frozenset(labels.items())), _Series(name, labels, bounds))
            series.holders += 1
            return self._handle(series)

    def _handle(self, item: Any) -> int:
        handle = next(self._handles)
        self._held[handle] = item
        return handle

    def change(self, metric: int, change: int, value: float) -> None:
        """Change a series. A bucket of a histogram includes its bound."""
        with self._lock:
            series: _Series = self._held[metric]
            if series.bounds is not None:
                series.counts[bisect_left(series.bounds, value)] += 1
            series.value = value if change == MetricChange.SET else series.value + value

    def read(self, metric: int) -> float:
        with self._lock:
            value: float = self._held[metric].value
            return value

    def _forget_dropped(self) -> None:
        while self.dropped:
            item = self._held.pop(self.dropped.popleft(), None)
            if isinstance(item, _Series):
                item.holders -= 1
                if not item.holders:
                    self._series.pop((item.name, frozenset(item.labels.items())), None)


def sample_name(name: str, labels: Mapping[str, str]) -> str:
    """Return a sample's name and labels as on a metrics page."""
    if not labels:
        return name
    text = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{text}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _shown(bound: float) -> str:
    return repr(bound)[:-2] if repr(bound).endswith(".0") else repr(bound)
