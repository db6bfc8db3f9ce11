"""Windows of load on several servers that all stay up and take turns.

A ratio is always formed between windows that lay seconds apart, and every other round goes the other way round, so
that none of the servers always runs first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.bench import bodies, progress, servers
from tests.bench.grpc_workloads import GrpcWorkload
from tests.bench.loadgen import Load, LoadResult, drive

_T = TypeVar("_T")


@dataclass(frozen=True)
class LoadSample:
    """One window on one server."""

    server: str
    workload: str
    connections: int
    round: int
    result: LoadResult


@dataclass(frozen=True)
class Step:
    """One window that each server gets in each of so many rounds."""

    workload: bodies.Workload | GrpcWorkload
    load: Load
    rounds: int


def take_turns(running: Sequence[servers.RunningServer], steps: Sequence[Step], scratch: Path) -> list[LoadSample]:
    """Go through the steps, round by round; within a step the servers follow each other.

    Args:
        running: the servers.
        steps: what to drive them with; one that has had its rounds is left out of the later ones.
        scratch: a directory for the requests.
    """
    samples: list[LoadSample] = []
    for round_ in range(max(step.rounds for step in steps)):
        for step in steps:
            if round_ >= step.rounds:
                continue
            request = scratch / "request"
            in_turns = step.workload.in_turns
            sized = b"".join(len(each).to_bytes(4, "big") + each for each in in_turns)
            request.write_bytes(sized or step.workload.request)
            for server in alternating(running, round_):
                result = _drive(server, step, request)
                samples.append(LoadSample(server.name, step.workload.name, step.load.connections, round_, result))
                progress.show(
                    f"{step.workload.name}, connections: {step.load.connections}, round {round_ + 1}, {server.name}: "
                    f"{result.infer_per_s:,.0f} infer/s, p50 {result.p50_us:,.0f} us, "
                    f"CPU {result.host_cpu_us:,.1f} + {result.stub_cpu_us:,.1f} us"
                )
    return samples


def _drive(server: servers.RunningServer, step: Step, request: Path) -> LoadResult:
    count = len(step.workload.in_turns)
    if isinstance(step.workload, bodies.Workload):
        return drive(server.port, server.tree(), request, step.load, in_turns=count)
    assert server.grpc_port is not None
    return drive(server.grpc_port, server.tree(), request, step.load, step.workload.call, count)


def alternating(taking_turns: Sequence[_T], round_: int) -> list[_T]:
    """The order in which servers, or whatever else is compared, take their turn in a round."""
    return list(taking_turns) if round_ % 2 == 0 else list(reversed(taking_turns))
