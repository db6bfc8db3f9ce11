"""Memory while a model calls another with large tensors, over and over: what a call took must come back with it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, procstat, progress, repositories, servers
from tests.bench.large_tensors import SETTLE_S
from tests.bench.plan import Plan


@dataclass(frozen=True)
class CallMemorySample:
    """Memory of all of a server's processes together during one or several requests, one after another.

    Attributes:
        requests: how many requests there were.
        calls: how many calls each of them made.
        call_bytes: size of the tensor that goes into a call and comes out of it.
        before: memory just before the first request.
        peak: while they ran: the processes' highest values, added up.
        after: once the server was idle for a second.
        shared_bytes: by how much the shared memory of the whole machine had grown then, which no process can hide by
            keeping it without mapping it.
        call_ms: time per call, reading the memory included.
        foreign_cores: CPU time of anything else on the machine meanwhile, in cores.
    """

    server: str
    requests: int
    calls: int
    call_bytes: int
    before: procstat.Memory
    peak: procstat.PeakMemory
    after: procstat.Memory
    shared_bytes: int
    call_ms: float
    foreign_cores: float


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[CallMemorySample]:
    """Make few calls on a fresh server, then more and more on the same one."""
    repository = scratch / "models"
    repositories.write_large_calls(repository)
    samples: list[CallMemorySample] = []
    for launcher in launchers:
        with launcher.start(repository) as server:
            bodies.check(server.port, bodies.large_calls(1, 4))  # what the first call of all costs is not the tensor's
            samples += [_watch(server, *requests_and_calls, plan.call_bytes) for requests_and_calls in plan.call_series]
    return samples


def _watch(server: servers.RunningServer, requests: int, calls: int, call_bytes: int) -> CallMemorySample:
    workload = bodies.large_calls(calls, call_bytes)
    tree = server.tree()
    pids = (tree.host, *tree.stubs)
    before, shared_bytes = procstat.memory(*pids), procstat.machine_shared_bytes()
    cpu, own_s, began = procstat.cpu_times(tree), time.process_time(), time.perf_counter()
    with procstat.watched_memory(*pids) as peak:
        for _ in range(requests):
            bodies.check(server.port, workload)
    seconds, own_s = time.perf_counter() - began, time.process_time() - own_s
    cpu = procstat.cpu_times(tree).since(cpu)
    time.sleep(SETTLE_S)
    after = procstat.memory(*pids)
    progress.show(
        f"{server.name}, {requests} x {workload.name}: PSS of all its processes {before.pss_bytes >> 20} MB, "
        f"peak {peak.pss_bytes >> 20} MB, after {after.pss_bytes >> 20} MB"
    )
    return CallMemorySample(
        server=server.name,
        requests=requests,
        calls=calls,
        call_bytes=call_bytes,
        before=before,
        peak=peak,
        after=after,
        shared_bytes=procstat.machine_shared_bytes() - shared_bytes,
        call_ms=seconds / (requests * calls) * 1e3,
        foreign_cores=((cpu.machine_ns - cpu.host_ns - cpu.stub_ns) / 1e9 - own_s) / seconds,
    )
