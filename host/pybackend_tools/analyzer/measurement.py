"""Measures models on a server: sends requests by more and more clients, and reads the server's figures."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from pybackend.errors import ServerError
from pybackend_client.figures import Sample, Source, advice_between, front_ends_between, rows_between

_WARM_S = 0.5
_MOST_WINDOWS = 6
_TOLERANCE = 0.1
"""Windows are alike if their rates differ by at most this part."""

_PROGRAM = (sys.executable, "-m", "pybackend_tools.analyzer.load_program")
_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
_BATCHES = "pybackend_batches_total"


@dataclass(frozen=True)
class Load:
    """How requests are sent."""

    clients: Sequence[int]  # of a closed loop: a measurement for each number, the smallest first
    rate_per_s: float = 0.0  # of an open loop, which has at most the last number of connections; 0 for a closed loop
    window_s: float = 1.0


@dataclass(frozen=True)
class Target:
    """A model that gets requests."""

    name: str
    requests: Sequence[bytes] = field(repr=False)  # as they are sent, in turns


@dataclass(frozen=True)
class Answers:
    """Figures from the clients of one model."""

    infer_per_s: float
    least_per_s: float  # in one of the windows
    most_per_s: float
    is_steady: bool
    p50_ms: float
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Inside:
    """Figures of one model from the server."""

    parts_ms: Mapping[str, float]  # where an average request's time goes
    batches: Mapping[str, int]  # executions by their sizes
    closed: Mapping[str, int]  # batches by the reason why they did not grow


@dataclass(frozen=True)
class Rung:
    """All models under one load."""

    clients: int
    answers: Mapping[str, Answers]  # by the models that got requests
    inside: Mapping[str, Inside]  # by the models that are varied
    memory_bytes: int  # of the processes of these, and of front ends; pages that they share count for each
    cpu_cores: float  # that the processes of these used
    advice: Sequence[str] = ()  # which models could share a process and save by it

    def __str__(self) -> str:
        clients, noisy = f"{self.clients} client{'s' if self.clients > 1 else ''}", "" if self.is_steady else ", noisy"
        return f"{self.infer_per_s:.0f} inferences/s with {clients}, p50 {self.p50_ms:.3g} ms, p99 {self.p99_ms:.3g} ms{noisy}"

    @property
    def infer_per_s(self) -> float:
        """The throughput for all models together."""
        return sum(each.infer_per_s for each in self.answers.values())

    @property
    def p99_ms(self) -> float:
        """The 99th percentile for the slowest model."""
        return max(each.p99_ms for each in self.answers.values())

    @property
    def p50_ms(self) -> float:
        """The median for the slowest model."""
        return max(each.p50_ms for each in self.answers.values())

    @property
    def is_steady(self) -> bool:
        """Whether the figures can be trusted."""
        return all(each.is_steady for each in self.answers.values())

    def document(self) -> dict[str, Any]:
        """For JSON; :func:`rung_of` reads it."""
        return asdict(self)


def rung_of(document: Mapping[str, Any]) -> Rung:
    """A measurement from JSON."""
    answers = {name: Answers(**each) for name, each in document["answers"].items()}
    inside = {name: Inside(**each) for name, each in document["inside"].items()}
    return Rung(
        document["clients"],
        answers,
        inside,
        document["memory_bytes"],
        document["cpu_cores"],
        tuple(document.get("advice", ())),
    )


class MeasurementError(ServerError):
    """A configuration cannot be measured: the message says why."""


class Bench:
    """Sends requests to models of a server, each from a separate process, and reads the server's figures.

    ``varied``: the models whose figures are read; those of ensembles are their steps.
    """

    def __init__(self, url: str, source: Source, targets: Sequence[Target], varied: Sequence[str]) -> None:
        self._source = source
        self._targets = targets
        self._varied = varied
        parts = urlsplit(url)
        self._address = [parts.hostname, parts.port]
        self._seed = 0
        self._processes = ExitStack()
        self._generators: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._generators = [self._processes.enter_context(_generator()) for _ in self._targets]
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def measure(self, load: Load, clients: int) -> Rung:
        """Measure all models at once.

        Raises MeasurementError if one refuses requests, or leaves them without an answer.
        """
        self._seed += 1
        before, closed_before = self._source.sample(), self._closed()
        for generator, target in zip(self._generators, self._targets, strict=True):
            job = {
                "address": self._address,
                "requests": [base64.b64encode(each).decode() for each in target.requests],
                "clients": clients,
                "rate": load.rate_per_s,
                "warm_s": _WARM_S,
                "window_s": load.window_s,
                "most_windows": _MOST_WINDOWS,
                "tolerance": _TOLERANCE,
                "seed": self._seed,
            }
            assert generator.stdin is not None
            with suppress(BrokenPipeError):  # its result says so
                generator.stdin.write(f"{json.dumps(job)}\n")
                generator.stdin.flush()
        results = [
            _result(generator, target.name) for generator, target in zip(self._generators, self._targets, strict=True)
        ]
        after, closed = self._source.sample(), self._closed()
        rows = [row for row in rows_between(before, after) if row.model in self._varied]
        failed = next((result for result in results if isinstance(result, MeasurementError)), None)
        if failed is not None:
            raise failed
        return Rung(
            clients,
            {target.name: result for target, result in zip(self._targets, results, strict=True)},  # type: ignore[misc]
            {
                name: Inside(**_figures(name, before, after), closed=_grown(closed[name], closed_before[name]))
                for name in self._varied
            },
            sum(row.resident_bytes or 0 for row in rows)
            + sum(row.resident_bytes or 0 for row in front_ends_between(before, after)),
            sum(row.cpu_cores or 0.0 for row in rows),
            tuple(f"{advice}." for advice in advice_between(before, after)),
        )

    def _closed(self) -> dict[str, Counter[str]]:
        """How many batches of each model were closed, by the reason."""
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, Counter[str]] = {name: Counter() for name in self._varied}
        assert self._source.metrics is not None
        page = self._source.metrics.get_bytes("/metrics").decode("utf-8", "replace")
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == _BATCHES and sample.labels["model"] in found:
                    found[sample.labels["model"]][sample.labels["reason"]] += int(sample.value)
        return found


@contextmanager
def _generator() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        _PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the command, whose end is the end of its input
    )
    try:
        yield process
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def _result(generator: subprocess.Popen[str], model: str) -> Answers | MeasurementError:
    assert generator.stdout is not None
    line = generator.stdout.readline()
    if not line:
        return MeasurementError("the process that sends requests has ended")
    got: dict[str, Any] = json.loads(line)
    if "failed" in got:
        return MeasurementError(f"model '{model}': {got['failed']}")
    count, errors, error = got.pop("count"), got.pop("errors"), got.pop("first_error")
    if errors:
        return MeasurementError(
            f"model '{model}' answers {errors} of {errors + count} requests with an error: {_error_in(error)}"
        )
    if not count:
        return MeasurementError(f"model '{model}' is too slow for the windows: --window=SECONDS makes them longer")
    return Answers(**got)


def _error_in(body: str) -> str:
    """The error of an answer, in one line."""
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body
    return " ".join(text.split())[:300]


def _figures(model: str, before: Sample, after: Sample) -> dict[str, Any]:
    """The parts of a request's time and the sizes of batches between two samples."""
    then, now = (_totals(model, sample) for sample in (before, after))
    count = max(1, now["count"] - then["count"])
    sizes = _grown(now["batches"], then["batches"])
    return {"parts_ms": {part: (now[part] - then[part]) / count / 1e6 for part in _PARTS}, "batches": sizes}


def _totals(model: str, sample: Sample) -> dict[str, Any]:
    """The counters of a model's versions together."""
    totals: dict[str, Any] = dict.fromkeys((*_PARTS, "count"), 0) | {"batches": Counter()}
    for (name, _), row in sample.statistics.items():
        if name == model:
            parts = row["inference_stats"]
            totals["count"] += int(parts["success"]["count"])
            for part in _PARTS:
                totals[part] += int(parts[part]["ns"])
            for batch in row["batch_stats"]:
                totals["batches"][str(batch["batch_size"])] += int(batch["compute_infer"]["count"])
    return totals


def _grown(now: Mapping[str, int], then: Mapping[str, int]) -> dict[str, int]:
    return {name: count - then.get(name, 0) for name, count in now.items() if count > then.get(name, 0)}
