"""Custom metrics: the families and series that models register, shared by all instances of all models.

A series is named by its family and labels, and is there as long as somebody holds it: a stub that made a Metric of it and
has not let go, or, where a stub died, its instance: so counters and histograms go on when it is restarted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan

from pybackend.errors import ErrorCode, InferenceError
from pybackend.observability.metrics import Family
from pybackend.observability.series import CounterSeries, GaugeSeries, HistogramSeries, Series, new_series
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import MetricChange, MetricKind
from pybackend_wire.metric_rules import family_problem, series_problem

MOST_FAMILIES = 1000
"""Names that the instances of one model may register in the server's life; names are never forgotten."""

MOST_HANDLES = 10_000
"""Metrics and families that one stub may hold at a time, and series that its instance keeps for the stubs to come."""

RESERVED_PREFIXES = (
    "pybackend_", "nv_inference_", "nv_model_", "nv_cache_", "nv_cpu_", "nv_gpu_", "nv_energy_", "nv_pinned_memory_",
)  # fmt: skip
"""How the names of the server's own families begin."""

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(eq=False)
class _Family:
    name: str
    kind: MetricKind
    help: str
    series: dict[frozenset[tuple[str, str]], _Series] = field(default_factory=dict)


@dataclass(eq=False)
class _Series:
    """A series and how many hold it; ``settings`` counts how often a gauge was set."""

    family: _Family
    labels: dict[str, str]
    state: Series
    holders: int = 0
    settings: int = 0


@dataclass(eq=False)
class _Stub:
    """What one stub holds.

    Attributes:
        instance: what keeps its counters when it dies, None if nobody does.
        held: families and series by the handle that the stub knows them by.
        issued: the last handle; they count from 1 and are never used twice.
        added: what it has added to gauges since they were last set, with :attr:`_Series.settings` of that time.
    """

    instance: object | None
    held: dict[int, _Family | _Series] = field(default_factory=dict)
    issued: int = 0
    added: dict[_Series, tuple[int, float]] = field(default_factory=dict)


class CustomMetrics:
    """The registry of one server. Stubs and instances are told apart by keys that mean nothing here."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._sample_names: dict[str, _Family] = {}
        self._registered_by: Counter[str] = Counter()
        self._stubs: dict[object, _Stub] = {}
        self._kept: dict[object, dict[_Series, None]] = {}

    # What a stub asks for

    def new_family(
        self, stub: object, instance: object, model_name: str, name: str, description: str, kind: MetricKind
    ) -> int:
        """Register a family, or find the one of that name.

        Args:
            stub: who wants it.
            instance: what the stub is a life of.
            model_name: the model that runs there.
            name: the family's name.
            description: its help text, unless it has one already.
            kind: what it measures.

        Returns:
            The stub's handle for it.

        Raises:
            InferenceError: why it cannot be.
        """
        family = self._families.get(name)
        if family is None:
            family = self._register(model_name, name, description, kind)
        elif family.kind != kind:
            raise InferenceError(
                f"metric family '{name}' is registered as {_article(family.kind)}, it cannot be {_article(kind)} too. "
                "Choose another name, or restart the server if the family has changed its kind.",
                ErrorCode.ALREADY_EXISTS,
            )
        return self._issue(self._stubs.setdefault(stub, _Stub(instance)), family)

    def new_series(
        self, stub: object, family_handle: int, labels: dict[str, str], buckets: Sequence[float] | None
    ) -> int:
        """Register a series, or share the one with these labels; returns the stub's handle for it.

        Raises:
            InferenceError: why it cannot be.
            RemoteProtocolError: the stub was never given such a family, or asks for what its SDK refuses.
        """
        family = self._held(stub, family_handle)
        if family is None:
            raise InferenceError("the metric family is deleted.", ErrorCode.INVALID_ARG)
        if not isinstance(family, _Family) or (buckets is None) is (family.kind == MetricKind.HISTOGRAM):
            raise RemoteProtocolError("a metric was asked for that its family cannot have")
        problem = series_problem(family.kind, labels, buckets)
        if problem is not None:
            raise InferenceError(problem, ErrorCode.INVALID_ARG)
        key = frozenset(labels.items())
        series = family.series.get(key) or _Series(family, labels, new_series(family.kind, buckets or ()))
        known = self._stubs[stub]
        handle = self._issue(known, series)
        family.series[key] = series
        kept = self._kept.get(known.instance, {})
        if series in kept:
            del kept[series]  # a restarted stub holds it again, in the place of its instance
        else:
            series.holders += 1
        return handle

    def change(self, stub: object, handle: int, change: MetricChange, value: float) -> None:
        """Change a series; nothing happens if the stub let go of it just now.

        Raises:
            RemoteProtocolError: the stub does what its SDK refuses.
        """
        series = self._held(stub, handle)
        if series is None:
            return
        match series, change:
            case _Series(state=CounterSeries() as counter), MetricChange.INCREMENT if value >= 0:
                counter.increment(value)
            case _Series(state=GaugeSeries() as gauge), MetricChange.INCREMENT:
                gauge.increment(value)
                added = self._stubs[stub].added
                settings, total = added.get(series, (-1, 0.0))
                added[series] = (series.settings, value if settings != series.settings else total + value)
            case _Series(state=GaugeSeries() as gauge), MetricChange.SET:
                gauge.set(value)
                series.settings += 1
            case _Series(state=HistogramSeries() as histogram), MetricChange.OBSERVE if not isnan(value):
                histogram.observe(value)
            case _:
                raise RemoteProtocolError("a metric was changed in a way that it cannot be")

    def value(self, stub: object, handle: int) -> float:
        """The value of a counter or gauge.

        Raises:
            InferenceError: the stub let go of it just now.
            RemoteProtocolError: the stub was never given such a one.
        """
        series = self._held(stub, handle)
        if series is None:
            raise InferenceError("the metric is deleted.", ErrorCode.INVALID_ARG)
        if not isinstance(series, _Series) or isinstance(series.state, HistogramSeries):
            raise RemoteProtocolError("the value was asked of what has none")
        return series.state.value

    def drop(self, stub: object, handle: int) -> None:
        """The stub lets go of a series or a family.

        Raises:
            RemoteProtocolError: it was never given that handle.
        """
        dropped = self._held(stub, handle)
        if dropped is None:
            return
        del self._stubs[stub].held[handle]
        if isinstance(dropped, _Series):
            self._stubs[stub].added.pop(dropped, None)
            self._release(dropped)

    # What becomes of stubs

    def on_gone(self, stub: object) -> None:
        """A stub's life is over: its counters and histograms stay for its instance, what it added to gauges goes."""
        gone = self._stubs.pop(stub, None)
        if gone is None:
            return
        for gauge, (settings, total) in gone.added.items():
            if settings == gauge.settings and isfinite(total) and isinstance(gauge.state, GaugeSeries):
                gauge.state.increment(-total)
        held = [item for item in gone.held.values() if isinstance(item, _Series)]
        if gone.instance is not None:
            held = self._keep(gone.instance, held)
        for series in held:
            self._release(series)

    def on_retired(self, instance: object) -> None:
        """No stub of this instance will come any more: its model is unloaded."""
        for stub in self._stubs.values():
            if stub.instance == instance:
                stub.instance = None
        for series in self._kept.pop(instance, ()):
            self._release(series)

    # The page

    def families(self) -> Iterator[Family]:
        """Families that have series, in the order in which they were registered."""
        for family in self._families.values():
            if family.series:
                samples = [
                    (suffix, {**series.labels, **labels}, value)
                    for series in family.series.values()
                    for suffix, labels, value in series.state.samples()
                ]
                yield Family(family.name, family.kind.name.lower(), family.help, suffixed=samples)

    # Inside

    def _register(self, model_name: str, name: str, description: str, kind: MetricKind) -> _Family:
        problem = family_problem(name, description)
        if problem is not None:
            raise InferenceError(problem, ErrorCode.INVALID_ARG)
        if name.startswith(RESERVED_PREFIXES):
            (prefix,) = (prefix for prefix in RESERVED_PREFIXES if name.startswith(prefix))
            raise InferenceError(
                f"metric families whose names begin with '{prefix}' are the server's own: choose another name for "
                f"'{name}'.",
                ErrorCode.INVALID_ARG,
            )
        names = [name]
        if kind == MetricKind.HISTOGRAM:
            names += [name + suffix for suffix in _HISTOGRAM_SUFFIXES]
        for sample_name in names:
            other = self._sample_names.get(sample_name)
            if other is not None:
                raise InferenceError(
                    f"metric family '{name}' would have samples named '{sample_name}', as {_article(other.kind)} "
                    f"'{other.name}' that is registered already: choose another name.",
                    ErrorCode.ALREADY_EXISTS,
                )
        if self._registered_by[model_name] >= MOST_FAMILIES:
            raise InferenceError(
                f"model '{model_name}' has registered {MOST_FAMILIES} metric families, which is the most it may. Tell "
                "cases apart by labels, not by names.",
                ErrorCode.UNAVAILABLE,
            )
        self._registered_by[model_name] += 1
        family = _Family(name, kind, description)
        self._families[name] = family
        self._sample_names |= dict.fromkeys(names, family)
        return family

    def _issue(self, stub: _Stub, item: _Family | _Series) -> int:
        if len(stub.held) >= MOST_HANDLES:
            raise InferenceError(
                f"this instance holds {MOST_HANDLES} metrics and metric families, which is the most it may. Make each "
                "once and keep it, and delete those that are not needed any more.",
                ErrorCode.UNAVAILABLE,
            )
        stub.issued += 1
        stub.held[stub.issued] = item
        return stub.issued

    def _held(self, stub: object, handle: int) -> _Family | _Series | None:
        """What the stub knows by a handle; None if it let go of it."""
        known = self._stubs.get(stub)
        if known is None or not 1 <= handle <= known.issued:
            raise RemoteProtocolError(f"metric {handle} was never given to this stub")
        return known.held.get(handle)

    def _keep(self, instance: object, held: list[_Series]) -> list[_Series]:
        """Let the instance hold what is no gauge; returns what nobody needs to hold any more."""
        kept = self._kept.setdefault(instance, {})
        rest = []
        for series in held:
            if series in kept or series.family.kind == MetricKind.GAUGE:
                rest.append(series)
            else:
                kept[series] = None
        while len(kept) > MOST_HANDLES:
            oldest = next(iter(kept))
            del kept[oldest]
            rest.append(oldest)
        return rest

    def _release(self, series: _Series) -> None:
        series.holders -= 1
        if not series.holders:
            del series.family.series[frozenset(series.labels.items())]


def _article(kind: MetricKind) -> str:
    return f"a {kind.name.lower()}"
