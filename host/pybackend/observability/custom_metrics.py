"""Custom metrics: the families and series that models register, shared by all instances of all models.

A series is identified by its family and labels, and exists while it has a holder: a stub with a Metric object for it
or, after a stub died, its instance. Counters and histograms therefore survive a restart of their stub.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite, isnan

from pybackend.errors import ErrorCode, InferenceError, invalid
from pybackend.observability.metrics import Family, head_bytes, labels_text, series_bytes
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import MetricChange, MetricKind
from pybackend_wire.metric_rules import family_problem, series_problem

MOST_FAMILIES = 1000
"""Names that the instances of one model may register during the server's lifetime; names are never removed."""

MOST_HANDLES = 10_000
"""Metrics and families that one stub may hold at a time, and series that its instance keeps for later stubs."""

MOST_PAGE_BYTES = 4 * 1024 * 1024
"""Limit on the metrics page's bytes for families and series of one model. Each bucket of a histogram takes a line, with
all labels."""

RESERVED_PREFIXES = (
    "pybackend_", "nv_inference_", "nv_model_", "nv_cache_", "nv_cpu_", "nv_gpu_", "nv_energy_", "nv_pinned_memory_",
)  # fmt: skip
"""Prefixes of the server's own families."""

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(eq=False)
class _Family:
    name: str
    kind: MetricKind
    help: str
    series: dict[frozenset[tuple[str, str]], _Series] = field(default_factory=dict)


@dataclass(eq=False)
class _Series:
    """A series and its number of holders; ``settings`` counts sets of a gauge, ``page_bytes`` belong to its maker."""

    family: _Family
    labels: dict[str, str]
    state: Value | Histogram
    model_name: str
    page_bytes: int
    holders: int = 0
    settings: int = 0


@dataclass(eq=False)
class _Stub:
    """The metrics held by one stub.

    Its ``instance`` keeps its counters if it dies, None if nothing does. Handles count from 1 and are never reused.
    ``added`` are amounts added to gauges since they were last set, with :attr:`_Series.settings` at that time.
    """

    instance: object | None
    model_name: str
    held: dict[int, _Family | _Series] = field(default_factory=dict)
    issued: int = 0
    added: dict[_Series, tuple[int, float]] = field(default_factory=dict)


class CustomMetrics:
    """The registry of one server. Stubs and instances are identified by opaque keys."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._sample_names: dict[str, _Family] = {}
        self._registered_by: Counter[str] = Counter()
        self._page_bytes: Counter[str] = Counter()
        self._stubs: dict[object, _Stub] = {}
        self._kept: dict[object, dict[_Series, None]] = {}

    # Requests of stubs

    def new_family(
        self, stub: object, instance: object, model_name: str, name: str, description: str, kind: MetricKind
    ) -> int:
        """Register a family, or find the existing one of that name.

        The description counts unless the family has one already. Returns the stub's handle.
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
        return self._issue(self._stubs.setdefault(stub, _Stub(instance, model_name)), family)

    def new_series(
        self, stub: object, family_handle: int, labels: dict[str, str], buckets: Sequence[float] | None
    ) -> int:
        """Register a series, or share the existing one with these labels; returns the stub's handle for it."""
        family = self._held(stub, family_handle)
        if family is None:
            raise invalid("the metric family is deleted.")
        if not isinstance(family, _Family) or (buckets is None) is (family.kind == MetricKind.HISTOGRAM):
            raise RemoteProtocolError("a metric was requested that its family cannot have")
        problem = series_problem(family.kind, labels, buckets)
        if problem is not None:
            raise invalid(problem)
        key = frozenset(labels.items())
        known = self._stubs[stub]
        found = family.series.get(key)
        series = found or self._new_series(known.model_name, family, labels, buckets or ())
        handle = self._issue(known, series)
        if found is None:
            family.series[key] = series
            self._page_bytes[series.model_name] += series.page_bytes
        kept = self._kept.get(known.instance, {})
        if series in kept:
            del kept[series]  # the restarted stub holds it again, instead of its instance
        else:
            series.holders += 1
        return handle

    def change(self, stub: object, handle: int, change: MetricChange, value: float) -> None:
        """Change a series; no effect if the stub has just released it."""
        series = self._held(stub, handle)
        if series is None:
            return
        match series, change:
            case _Series(family=_Family(kind=MetricKind.COUNTER), state=Value() as counter), MetricChange.INCREMENT if (
                value >= 0
            ):
                counter.value += value
            case _Series(family=_Family(kind=MetricKind.GAUGE), state=Value() as gauge), MetricChange.INCREMENT:
                gauge.value += value
                added = self._stubs[stub].added
                settings, total = added.get(series, (-1, 0.0))
                added[series] = (series.settings, value if settings != series.settings else total + value)
            case _Series(family=_Family(kind=MetricKind.GAUGE), state=Value() as gauge), MetricChange.SET:
                gauge.value = value
                series.settings += 1
            case _Series(state=Histogram() as histogram), MetricChange.OBSERVE if not isnan(value):
                histogram.observe(value)
            case _:
                raise RemoteProtocolError("a metric was changed in a way that its kind does not allow")

    def value(self, stub: object, handle: int) -> float:
        """The value of a counter or gauge."""
        series = self._held(stub, handle)
        if series is None:
            raise invalid("the metric is deleted.")
        if not isinstance(series, _Series) or isinstance(series.state, Histogram):
            raise RemoteProtocolError("the value was requested of a metric that has none")
        return series.state.value

    def drop(self, stub: object, handle: int) -> None:
        """Release the stub's hold on a series or a family."""
        dropped = self._held(stub, handle)
        if dropped is None:
            return
        del self._stubs[stub].held[handle]
        if isinstance(dropped, _Series):
            self._stubs[stub].added.pop(dropped, None)
            self._release(dropped)

    # End of stubs

    def on_gone(self, stub: object) -> None:
        """Handle the end of a stub: its instance keeps counters and histograms; its additions to gauges are undone."""
        gone = self._stubs.pop(stub, None)
        if gone is None:
            return
        for gauge, (settings, total) in gone.added.items():
            if settings == gauge.settings and isfinite(total) and isinstance(gauge.state, Value):
                gauge.state.value -= total
        held = [item for item in gone.held.values() if isinstance(item, _Series)]
        if gone.instance is not None:
            held = self._keep(gone.instance, held)
        for series in held:
            self._release(series)

    def on_retired(self, instance: object) -> None:
        """Release an instance's series: its model is unloaded, and no further stub will start."""
        for stub in self._stubs.values():
            if stub.instance == instance:
                stub.instance = None
        for series in self._kept.pop(instance, ()):
            self._release(series)

    # Metrics page

    def families(self) -> Iterator[Family]:
        """Families that have series, in order of registration.

        Values are read when a sample is taken, and the registry may change before the next one.
        """
        for family in list(self._families.values()):
            if family.series:
                samples = (
                    (suffix, labels_text({**series.labels, **labels}), value)
                    for series in list(family.series.values())
                    for suffix, labels, value in series.state.samples()
                )
                yield Family(family.name, family.kind.name.lower(), family.help, samples)

    # Internals

    def _register(self, model_name: str, name: str, description: str, kind: MetricKind) -> _Family:
        problem = family_problem(name, description)
        if problem is not None:
            raise invalid(problem)
        if name.startswith(RESERVED_PREFIXES):
            (prefix,) = (prefix for prefix in RESERVED_PREFIXES if name.startswith(prefix))
            raise invalid(
                f"metric families whose names begin with '{prefix}' are the server's own: choose another name for "
                f"'{name}'."
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
                f"model '{model_name}' has registered {MOST_FAMILIES} metric families, the maximum. Tell "
                "cases apart by labels, not by names.",
                ErrorCode.UNAVAILABLE,
            )
        nbytes = head_bytes(name, kind.name, description)
        self._check_page(model_name, nbytes)
        self._page_bytes[model_name] += nbytes  # never returned, because names are never removed
        self._registered_by[model_name] += 1
        family = _Family(name, kind, description)
        self._families[name] = family
        self._sample_names |= dict.fromkeys(names, family)
        return family

    def _new_series(
        self, model_name: str, family: _Family, labels: dict[str, str], buckets: Sequence[float]
    ) -> _Series:
        line_count = len(buckets) + 3 if family.kind == MetricKind.HISTOGRAM else 1
        nbytes = series_bytes(family.name, labels, line_count)
        self._check_page(model_name, nbytes)
        return _Series(
            family, labels, Histogram(buckets) if family.kind == MetricKind.HISTOGRAM else Value(), model_name, nbytes
        )

    def _check_page(self, model_name: str, nbytes: int) -> None:
        if self._page_bytes[model_name] + nbytes > MOST_PAGE_BYTES:
            raise InferenceError(
                f"the metrics of model '{model_name}' would take more than {MOST_PAGE_BYTES} bytes of the metrics page, "
                "the maximum. Make fewer of them, with fewer buckets and shorter labels, and delete those "
                "that are no longer needed.",
                ErrorCode.UNAVAILABLE,
            )

    def _issue(self, stub: _Stub, item: _Family | _Series) -> int:
        if len(stub.held) >= MOST_HANDLES:
            raise InferenceError(
                f"this instance holds {MOST_HANDLES} metrics and metric families, the maximum. Make each "
                "once and keep it, and delete those that are no longer needed.",
                ErrorCode.UNAVAILABLE,
            )
        stub.issued += 1
        stub.held[stub.issued] = item
        return stub.issued

    def _held(self, stub: object, handle: int) -> _Family | _Series | None:
        """The item behind a handle; None if the stub has released it."""
        known = self._stubs.get(stub)
        if known is None or not 1 <= handle <= known.issued:
            raise RemoteProtocolError(f"metric {handle} was never given to this stub")
        return known.held.get(handle)

    def _keep(self, instance: object, held: list[_Series]) -> list[_Series]:
        """Let the instance hold counters and histograms; returns the series without a holder."""
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
            self._page_bytes[series.model_name] -= series.page_bytes


def _article(kind: MetricKind) -> str:
    return f"a {kind.name.lower()}"


Sample = tuple[str, dict[str, str], float]
"""Suffix of the family's name, labels beyond the series' own, value."""


class Value:
    """The value of a counter or a gauge."""

    def __init__(self) -> None:
        self.value = 0.0

    def samples(self) -> list[Sample]:
        return [("", {}, self.value)]


class Histogram:
    """The observations of a histogram.

    The bounds of ``buckets`` are finite and strictly increasing; there may be none.
    """

    def __init__(self, buckets: Sequence[float]) -> None:
        self._bounds = tuple(buckets)
        self._counts = [0.0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> list[Sample]:
        totals = list(accumulate(self._counts))
        names = [*map(_bound_text, self._bounds), "+Inf"]
        buckets = [("_bucket", {"le": name}, total) for name, total in zip(names, totals, strict=True)]
        return [*buckets, ("_sum", {}, self._sum), ("_count", {}, totals[-1])]


def _bound_text(bound: float) -> str:
    """A bound as Prometheus' own libraries write it: large ones with an exponent."""
    text = repr(bound)
    whole, point, _ = text.partition(".")
    if bound > 0 and point and len(whole) > 6:
        digits = text.replace(".", "")
        return f"{digits[0]}.{digits[1:]}".rstrip("0.") + f"e+{len(whole) - 1:02d}"
    return text.removesuffix(".0")
