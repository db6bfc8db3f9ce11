"""Traces of requests as trees: which part took how long, and which models were called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pybackend.modelconfig.schema import full_name

PARTS = ("host", "queue", "input", "compute", "output")
_BEGINS = {
    "QUEUE_START": "queue",
    "COMPUTE_START": "input",
    "COMPUTE_INPUT_END": "compute",
    "COMPUTE_OUTPUT_START": "output",
    "COMPUTE_END": "host",
    "INFER_RESPONSE_COMPLETE": "host",
}


@dataclass(frozen=True)
class Part:
    """A part of a request's time."""

    name: str  # one of ``PARTS``
    begin_ns: int
    end_ns: int


@dataclass
class Trace:
    """A traced request to a model, with the requests to other models that it made."""

    number: int
    model: str
    request_id: str
    error: str  # ``""`` for none
    parts: Sequence[Part]
    calls: list[Trace] = field(default_factory=list)

    @property
    def begin_ns(self) -> int:
        """When it came."""
        return self.parts[0].begin_ns

    @property
    def ms(self) -> float:
        """How long all of it took."""
        return (self.parts[-1].end_ns - self.begin_ns) / 1e6

    def ms_of(self, part: str) -> float:
        """How long a part took."""
        return sum(each.end_ns - each.begin_ns for each in self.parts if each.name == part) / 1e6

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Trace]]:
        """The trace and all below it with their depths, in the order in which they came."""
        yield depth, self
        for each in self.calls:
            yield from each.walk(depth + 1)


def traces_in(documents: Sequence[Mapping[str, Any]]) -> list[Trace]:
    """The requests of clients among the traces of a server, the newest one first."""
    found = {each["id"]: _trace(each) for each in documents if each["timestamps"]}
    roots = []
    for each in documents:
        trace, parent = found.get(each["id"]), found.get(each["parent_id"])
        if trace is not None and each["parent_id"] is None:
            roots.append(trace)
        elif trace is not None and parent is not None:
            parent.calls.append(trace)
    for trace in found.values():
        trace.calls.sort(key=lambda call: call.begin_ns)
    return sorted(roots, key=lambda trace: -trace.begin_ns)


def _trace(document: Mapping[str, Any]) -> Trace:
    moments = [(each["name"], int(each["ns"])) for each in document["timestamps"]]
    runs = any(name == "COMPUTE_START" for name, _ in moments) or not any(
        name == "INFER_RESPONSE_COMPLETE" for name, _ in moments
    )  # an ensemble has no process, and so its steps are no queue
    parts: list[Part] = []
    current, begin_ns = "host", moments[0][1]
    for name, ns in moments:
        following = _BEGINS.get(name, current) if runs else current
        if following != current:
            parts.append(Part(current, begin_ns, ns))
            current, begin_ns = following, ns
    parts.append(Part(current, begin_ns, moments[-1][1]))
    model = full_name(document.get("namespace", ""), document["model_name"])
    return Trace(document["id"], model, document["request_id"], document["error"], parts)


@dataclass(frozen=True)
class Step:
    """A model in the tree of calls, with means over several requests."""

    model: str
    per_request: float  # calls for each request of its caller
    ms: float
    queue_ms: float
    compute_ms: float
    calls: Sequence[Step]


def steps_of(traces: Sequence[Trace], callers: int) -> Step:
    """The tree of calls of requests to one model, which ``callers`` requests have made."""
    called: dict[str, list[Trace]] = {}
    for trace in traces:
        for each in trace.calls:
            called.setdefault(each.model, []).append(each)
    return Step(
        traces[0].model,
        len(traces) / callers,
        fmean(each.ms for each in traces),
        fmean(each.ms_of("queue") for each in traces),
        fmean(each.ms_of("compute") for each in traces),
        [steps_of(each, len(traces)) for each in called.values()],
    )
