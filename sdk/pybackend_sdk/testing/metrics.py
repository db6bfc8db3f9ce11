"""Custom metrics of models under test: one registry for all models that can call each other, as in a server."""

import threading
from bisect import bisect_left
from collections import deque
from typing import Any, Callable, Deque, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from pybackend_sdk.metrics import MetricKind, metric_failure

_Labels = FrozenSet[Tuple[str, str]]


class _Series:
    def __init__(self, family: "_Family", labels: Dict[str, str], bounds: "Optional[List[float]]") -> None:
        self.family = family
        self.labels = labels
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if bounds is not None else []
        self.value = 0.0
        self.holders = 0

    def samples(self) -> Iterator[Tuple[str, float]]:
        name = self.family.name
        if self.bounds is None:
            yield sample_name(name, self.labels), self.value
            return
        below = 0
        for bound, count in zip([*map(_shown, self.bounds), "+Inf"], self.counts):
            below += count
            yield sample_name(name + "_bucket", {**self.labels, "le": bound}), below
        yield sample_name(name + "_sum", self.labels), self.value
        yield sample_name(name + "_count", self.labels), below


class _Family:
    def __init__(self, name: str, kind: MetricKind) -> None:
        self.name = name
        self.kind = kind
        self.series: Dict[_Labels, _Series] = {}


class _Handle:
    """The handle by which one ``Metric`` or ``MetricFamily`` of a model refers to a series or a family."""

    __slots__ = ("item", "registry")

    def __init__(self, registry: "MetricRegistry", item: Any) -> None:
        self.registry = registry
        self.item = item


class MetricRegistry(Mapping[str, float]):
    """Every sample by its name and labels, as on the server's metrics page: ``{'asked_total{model="m"}': 2.0}``.

    A histogram has samples ``<name>_bucket{le="..."}``, ``<name>_sum`` and ``<name>_count``. Labels are in alphabetical
    order. :meth:`value` builds these names.

    Attributes:
        dropped: handles that the garbage collector has found.
        sources: functions that return the samples of models in other processes.
    """

    def __init__(self) -> None:
        self.dropped: Deque[Any] = deque()
        self.sources: List[Callable[[], Mapping[str, float]]] = []
        self._families: Dict[str, _Family] = {}
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
            samples = {
                name: value
                for family in self._families.values()
                for series in family.series.values()
                for name, value in series.samples()
            }
        for source in list(self.sources):
            for name, value in source().items():
                samples[name] = samples.get(name, 0.0) + value
        return samples

    # For models

    def create_family(self, instance_name: str, name: str, kind: MetricKind) -> _Handle:
        """Register a family, or find the existing one of that name.

        Raises:
            TritonModelException: the existing one is of another kind.
        """
        with self._lock:
            family = self._families.setdefault(name, _Family(name, kind))
            if family.kind != kind:
                raise metric_failure(
                    "Error when creating MetricFamily: ",
                    instance_name,
                    f"metric family '{name}' is registered as a {family.kind.name.lower()}, it cannot be a "
                    f"{kind.name.lower()} too.",
                )
            return _Handle(self, family)

    def create(self, family: Any, labels: Dict[str, str], bounds: "Optional[List[float]]") -> _Handle:
        """Register a series, or share the existing one with these labels."""
        with self._lock:
            self._forget_dropped()
            key = frozenset(labels.items())
            series = family.item.series.setdefault(key, _Series(family.item, labels, bounds))
            series.holders += 1
            return _Handle(self, series)

    def increment(self, metric: Any, value: float) -> None:
        """Add to a counter or gauge."""
        with self._lock:
            metric.item.value += value

    def set(self, metric: Any, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            metric.item.value = value

    def observe(self, metric: Any, value: float) -> None:
        """Add an observation to a histogram; a bucket includes its bound."""
        series: _Series = metric.item
        assert series.bounds is not None
        with self._lock:
            series.counts[bisect_left(series.bounds, value)] += 1
            series.value += value

    def read(self, metric: Any) -> float:
        """Return the value of a counter or gauge."""
        with self._lock:
            value: float = metric.item.value
            return value

    def _forget_dropped(self) -> None:
        while self.dropped:
            item = self.dropped.popleft()
            if isinstance(item, _Series):
                item.holders -= 1
                if not item.holders:
                    item.family.series.pop(frozenset(item.labels.items()), None)


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
