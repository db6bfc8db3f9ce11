"""Large tensors: how many bytes per second pass through identity, and what memory the host takes for it.

Speed is measured on one connection with the servers taking turns. Memory is measured apart from that, on a fresh
server for every size: reading it costs time, and blocks kept from a larger tensor would hide what a smaller one takes.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, procstat, progress, repositories, servers
from tests.bench.loadgen import Load, drive
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, take_turns

# A server may return memory a moment after its last request.
SETTLE_S = 1.0
_SMALL_BYTES = 4096


@dataclass(frozen=True)
class GrowthSample:
    """The host's memory before, during and after large requests on one connection.

    Attributes:
        tensor_bytes: size of the tensor that goes in and comes out.
        in_flight_bytes: request and reply together, the most that one connection can have under way.
        peak: the highest values while requests ran.
        after: once the server was idle for a second.
    """

    server: str
    tensor_bytes: int
    in_flight_bytes: int
    before: procstat.Memory
    peak: procstat.PeakMemory
    after: procstat.Memory
    foreign_cores: float


def measure_speed(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Drive identity with every size on one connection; the yardstick reads the body and answers as many bytes."""
    repository = scratch / "models"
    repositories.write_pair(repository)
    samples: list[LoadSample] = []
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in launchers]
        for size in plan.tensor_bytes:
            workload = bodies.identity_binary(size)
            for server in running:
                bodies.check(server.port, workload)
            step = Step(workload, Load(1, plan.duration_s, plan.warm_up_s, plan.large_requests), plan.rounds)
            with servers.echo(len(workload.body)) as echo:
                samples += take_turns([*running, echo], [step], scratch)
    return samples


def measure_growth(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[GrowthSample]:
    """Watch the host's memory while each size passes through a fresh server."""
    repository = scratch / "models"
    repositories.write_pair(repository)
    samples: list[GrowthSample] = []
    for size in plan.tensor_bytes:
        workload = bodies.identity_binary(size)
        request = scratch / "request"
        request.write_bytes(workload.request)
        for launcher in launchers:
            with launcher.start(repository) as server:
                samples.append(_watch_growth(server, workload, request, plan))
    return samples


def _watch_growth(server: servers.RunningServer, workload: bodies.Workload, request: Path, plan: Plan) -> GrowthSample:
    for small in (bodies.add_sub_binary(), bodies.identity_binary(_SMALL_BYTES)):
        bodies.check(server.port, small)  # what the first request of all costs is not the large tensor's
    before = procstat.memory(server.pid)
    with procstat.watched_memory(server.pid) as peak:
        load = Load(1, plan.duration_s, 0, plan.large_requests)
        result = drive(server.port, server.tree(), request, load)
    time.sleep(SETTLE_S)
    after = procstat.memory(server.pid)
    progress.show(
        f"{workload.name}, memory of {server.name}'s host: {before.rss_bytes >> 20} MB, peak {peak.rss_bytes >> 20} MB, "
        f"after {after.rss_bytes >> 20} MB"
    )
    in_flight_bytes = len(workload.body) + result.reply_bytes
    return GrowthSample(server.name, workload.tensor_bytes, in_flight_bytes, before, peak, after, result.foreign_cores)
