"""Small tensors under load: add_sub as JSON and as binary, from one connection to many.

All servers stay up and take turns, one window each, so that a ratio is always formed within a few seconds; every other
round goes the other way round, so that none of them always runs first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, progress, repositories, servers
from tests.bench.loadgen import Load, LoadResult, drive
from tests.bench.plan import Plan


@dataclass(frozen=True)
class LoadSample:
    """One window on one server."""

    server: str
    workload: str
    connections: int
    round: int
    result: LoadResult


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Climb the ladder on every server and on the yardstick.

    Args:
        launchers: the servers; the yardstick answers as many bytes as the first of them.
        plan: rounds, connections and times.
        scratch: an empty directory to write in.
    """
    repository = scratch / "models"
    repositories.write_pair(repository)
    samples: list[LoadSample] = []
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in launchers]
        for workload in (bodies.add_sub_json(), bodies.add_sub_binary()):
            reply_bytes = [bodies.check(server.port, workload) for server in running]
            with servers.echo(reply_bytes[0] if reply_bytes else len(workload.body)) as echo:
                samples += _climb([*running, echo], workload, plan, scratch)
    return samples


def alternating(running: Sequence[servers.RunningServer], round_: int) -> list[servers.RunningServer]:
    """The order in which servers take their turn in a round."""
    return list(running) if round_ % 2 == 0 else list(reversed(running))


def _climb(
    running: Sequence[servers.RunningServer], workload: bodies.Workload, plan: Plan, scratch: Path
) -> list[LoadSample]:
    request = scratch / "request"
    request.write_bytes(workload.request)
    samples: list[LoadSample] = []
    for round_ in range(max(plan.single_rounds, plan.rounds)):
        for connections in plan.connections:
            if round_ >= (plan.single_rounds if connections == 1 else plan.rounds):
                continue
            load = Load(connections, plan.duration_s, plan.warm_up_s)
            for server in alternating(running, round_):
                result = drive(server.port, server.tree(), request, load)
                samples.append(LoadSample(server.name, workload.name, connections, round_, result))
                progress.show(
                    f"{workload.name}, {connections} connections, round {round_ + 1}, {server.name}: "
                    f"{result.infer_per_s:,.0f} infer/s, p50 {result.p50_us:,.0f} us, "
                    f"CPU {result.host_cpu_us:.1f} + {result.stub_cpu_us:.1f} us"
                )
    return samples
