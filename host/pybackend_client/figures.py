"""The figures of a running server's models: counters of two moments, and what they say about the time between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from time import monotonic
from typing import Any

from pybackend.errors import InferenceError, PybackendError
from pybackend.modelconfig.group_advice import CALLS_FAMILY, OFTEN_PER_S, GroupAdvice
from pybackend.modelconfig.schema import full_name
from pybackend_client.connection import Connection

_Version = tuple[str, str]
"""Name and version of a model."""

_GAUGES = {
    "nv_inference_pending_request_count": "waiting",
    "pybackend_instances": "instances",
    "pybackend_instances_ready": "instances_ready",
    "pybackend_stub_restarts_total": "restarts",
    "pybackend_executions_running": "running",
    "pybackend_oldest_execution_seconds": "oldest_s",
    "pybackend_process_resident_bytes": "resident_bytes",
    "pybackend_process_cpu_seconds_total": "cpu_s",
}
_FRONT_END_GAUGES = {
    "pybackend_front_end_connections": "connections",
    "pybackend_front_end_restarts_total": "restarts",
    "pybackend_front_end_resident_bytes": "resident_bytes",
    "pybackend_front_end_cpu_seconds_total": "cpu_s",
}
_RECENT, _WINDOW = "pybackend_recent_execution_seconds", "nv_inference_compute_infer_summary_us"
"""The families with them: of every server of ours, and of those with ``--metrics-config=summary_latencies=true``, whose
pages have both."""

_BATCHES = "pybackend_batches_total"

_QUANTILES = {0.5: "execute_p50_ms", 0.99: "execute_p99_ms"}


@dataclass
class _Metrics:
    """The contents of a metrics page."""

    versions: dict[_Version, dict[str, float]] = field(default_factory=dict)
    batches: dict[_Version, dict[str, float]] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    front_ends: dict[str, dict[str, float]] = field(default_factory=dict)
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)
    groupable: dict[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """The counters at one moment."""

    taken_s: float  # the moment, on the clock of ``time.monotonic``
    states: Mapping[_Version, str]  # the state of each version that the server knows
    statistics: Mapping[_Version, Mapping[str, Any]]  # of ready versions, as the protocol has them
    # of versions, by the names of :class:`Row`'s attributes; empty without metrics
    metrics: Mapping[_Version, Mapping[str, float]]
    reasons: Mapping[_Version, str] = field(default_factory=dict)  # why versions do not serve
    batches: Mapping[_Version, Mapping[str, float]] = field(
        default_factory=dict
    )  # by the reason that they did not grow
    server: Mapping[str, float] = field(
        default_factory=dict
    )  # samples without a model, such as those of the event loop
    # of front ends in separate processes, by number; empty without metrics
    front_ends: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by UUID, by the names of families
    # calls that could stay in a process, by the models that call and are called; empty without metrics
    groupable: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class FrontEndRow:
    """One front end between two moments; None for figures of a process that is being started."""

    front_end: str  # its number
    connections: int
    restarts: int  # processes that have taken the place of one that ended
    cpu_cores: float | None = None  # processor time, in seconds per second
    resident_bytes: int | None = None


@dataclass(frozen=True)
class Row:
    """One version between two moments; None for figures that the server does not give."""

    model: str
    version: str  # decimal, ``""`` for a model without versions
    state: str  # such as ``READY``; ``""`` for a model that was never loaded
    instances: int | None = None
    instances_ready: int | None = None
    restarts: int | None = None  # processes that were replaced since the load
    requests_per_s: float | None = None  # successful ones
    failures_per_s: float | None = None  # requests answered with an error after the model had accepted them
    waiting: int | None = None
    running: int | None = None
    oldest_s: float | None = None  # how long the oldest of these has run
    request_ms: float | None = None  # mean time of a successful request from its arrival to its answer
    queue_ms: float | None = None  # mean wait of a successful request
    input_ms: float | None = None  # mean time until its inputs were ready
    execute_ms: float | None = None  # mean time of a successful request inside ``execute``
    output_ms: float | None = None  # mean time until its outputs were read
    execute_p50_ms: float | None = None  # median of the last executions
    execute_p99_ms: float | None = None  # 99th percentile of the last executions
    requests: int | None = None  # successful ones since the load
    failures: int | None = None
    # memory of its processes and of those that they started; pages that they share count for each
    resident_bytes: int | None = None
    cpu_cores: float | None = None  # processor time of the same processes, in seconds per second


@dataclass
class Source:
    """Where samples come from."""

    server: Connection
    metrics: Connection | None = None  # the port for metrics, None to do without
    trouble: str = field(default="", init=False)  # why the last sample has no metrics, ``""`` if it has

    def sample(self) -> Sample:
        """Read the counters. Raises PybackendError if the server does not answer, or refuses to."""
        index = self.server.post_json("/v2/repository/index", {})
        states = {(_name_of(row), row.get("version", "")): row.get("state", "") for row in index}
        reasons = {(_name_of(row), row.get("version", "")): row.get("reason", "") for row in index}
        statistics, metrics = self._statistics(), self._metrics()
        return Sample(
            monotonic(),
            states,
            statistics,
            metrics.versions,
            reasons,
            metrics.batches,
            metrics.server,
            metrics.front_ends,
            metrics.gpus,
            metrics.groupable,
        )

    def _statistics(self) -> dict[_Version, Mapping[str, Any]]:
        try:
            listed = self.server.get("/v2/models/stats")["model_stats"]
        except InferenceError:  # no model is ready
            listed = []
        return {(_name_of(row), row["version"]): row for row in listed}

    def _metrics(self) -> _Metrics:
        self.trouble = ""
        if self.metrics is None:
            return _Metrics()
        try:
            return _parsed(self.metrics.get_bytes("/metrics").decode("utf-8", "replace"))
        except (PybackendError, ValueError) as error:
            self.trouble = str(error)
            if isinstance(error, InferenceError) and self.trouble.startswith("Not Found"):
                self.trouble = f"{self.metrics.url} is not the server's port for metrics: --metrics-url=URL names it"
            return _Metrics()


def _parsed(text: str) -> _Metrics:
    """The figures of a metrics page. Raises ValueError if it is no such page."""
    from prometheus_client.parser import text_string_to_metric_families

    found = _Metrics()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if isnan(sample.value):
                continue
            if "model" not in labels:
                _note_of_server(found, sample.name, labels, sample.value)
                continue
            version = full_name(labels.get("namespace", ""), labels["model"]), labels.get("version", "")
            if sample.name == _BATCHES:
                found.batches.setdefault(version, {})[labels.get("reason", "")] = sample.value
                continue
            name = _GAUGES.get(sample.name, "")
            if sample.name in {_RECENT, _WINDOW} and "quantile" in labels:
                name = _QUANTILES.get(float(labels["quantile"]), "")
            if name:
                figures = found.versions.setdefault(version, {})
                if sample.name == _RECENT:
                    figures[name] = sample.value * 1000
                elif sample.name == _WINDOW:
                    figures.setdefault(name, sample.value / 1000)
                else:
                    figures[name] = figures.get(name, 0) + sample.value  # some have a series for each instance
    return found


def _note_of_server(found: _Metrics, name: str, labels: Mapping[str, str], value: float) -> None:
    if not labels:
        found.server[name] = value
    elif name == CALLS_FAMILY:
        found.groupable[labels["caller"], labels["called"]] = value
    elif "gpu_uuid" in labels:
        found.gpus.setdefault(labels["gpu_uuid"], {})[name] = value
    elif "front_end" in labels and name in _FRONT_END_GAUGES:
        found.front_ends.setdefault(labels["front_end"], {})[_FRONT_END_GAUGES[name]] = value


def _name_of(row: Mapping[str, Any]) -> str:
    """The full name of the model in a row of the index or of the statistics."""
    return full_name(row.get("namespace", ""), row["name"])


def rows_between(before: Sample, after: Sample) -> list[Row]:
    """One row per version, sorted by name and version; its rates are those between two samples."""
    elapsed_s = max(after.taken_s - before.taken_s, 1e-9)
    names = sorted(after.states, key=lambda version: (version[0], len(version[1]), version[1]))
    return [_row(version, before, after, elapsed_s) for version in names]


def front_ends_between(before: Sample, after: Sample) -> list[FrontEndRow]:
    """One row per front end, in the order of their numbers; rates are those between two samples."""
    elapsed_s = max(after.taken_s - before.taken_s, 1e-9)
    rows = []
    for name, now in sorted(after.front_ends.items(), key=lambda each: (len(each[0]), each[0])):
        resident, cpu_s = now.get("resident_bytes"), now.get("cpu_s")
        then_s = before.front_ends.get(name, {}).get("cpu_s")
        known = cpu_s is not None and then_s is not None and cpu_s >= then_s  # otherwise the process was replaced
        rows.append(
            FrontEndRow(
                name,
                int(now.get("connections", 0)),
                int(now.get("restarts", 0)),
                (cpu_s - then_s) / elapsed_s if known else None,  # type: ignore[operator]  # both are there
                None if resident is None else int(resident),
            )
        )
    return rows


def advice_between(before: Sample, after: Sample) -> list[GroupAdvice]:
    """The models that could share a process and save by it, as their calls between two samples show."""
    elapsed_s = max(after.taken_s - before.taken_s, 1e-9)
    rates = {
        pair: (count - before.groupable[pair]) / elapsed_s
        for pair, count in sorted(after.groupable.items())
        if pair in before.groupable
    }
    return [GroupAdvice(*pair, rate) for pair, rate in rates.items() if rate >= OFTEN_PER_S]


def _row(version: _Version, before: Sample, after: Sample, elapsed_s: float) -> Row:
    model, number = version
    figures: dict[str, Any] = {
        name: value if name.endswith(("_ms", "_s")) else int(value)
        for name, value in after.metrics.get(version, {}).items()
        if name != "cpu_s"
    }
    cpu_before_s, cpu_s = (sample.metrics.get(version, {}).get("cpu_s") for sample in (before, after))
    if cpu_s is not None and cpu_before_s is not None and cpu_s >= cpu_before_s:  # otherwise a process was replaced
        figures["cpu_cores"] = (cpu_s - cpu_before_s) / elapsed_s
    now = after.statistics.get(version)
    if now is not None:
        figures |= _figures(_totals(now), _totals(before.statistics.get(version, {})), elapsed_s)
    return Row(model, number, after.states[version], **figures)


def _figures(now: Mapping[str, int], then: Mapping[str, int], elapsed_s: float) -> dict[str, Any]:
    if any(now[name] < then[name] for name in now):  # it was loaded again
        then = dict.fromkeys(now, 0)
    grown = {name: now[name] - then[name] for name in now}
    count = grown["requests"]
    return {
        "requests": now["requests"],
        "failures": now["failures"],
        "requests_per_s": count / elapsed_s,
        "failures_per_s": grown["failures"] / elapsed_s,
        "request_ms": grown["request_ns"] / count / 1e6 if count else None,
        "queue_ms": grown["queue_ns"] / count / 1e6 if count else None,
        "execute_ms": grown["execute_ns"] / count / 1e6 if count else None,
        "input_ms": grown["input_ns"] / count / 1e6 if count else None,
        "output_ms": grown["output_ns"] / count / 1e6 if count else None,
    }


def _totals(statistics: Mapping[str, Any]) -> dict[str, int]:
    parts = statistics.get("inference_stats", {})

    def total(name: str, member: str) -> int:
        return int(parts.get(name, {}).get(member, 0))

    return {
        "requests": total("success", "count"),
        "failures": total("fail", "count"),
        "request_ns": total("success", "ns"),
        "queue_ns": total("queue", "ns"),
        "execute_ns": total("compute_infer", "ns"),
        "input_ns": total("compute_input", "ns"),
        "output_ns": total("compute_output", "ns"),
    }
