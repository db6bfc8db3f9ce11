"""How far one server scales: front ends and instances of a model, as far as this machine has cores for them.

What each kind of process spends per request is measured on any machine. From it follows what a machine with more cores
can answer at most (:func:`limits`): one process schedules, and the others share the rest.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pybackend.cli.output import counted
from tests.bench import bodies, grpc_workloads, progress, repositories, servers
from tests.bench.loadgen import Load, LoadResult, load_median
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, take_turns

CONNECTIONS = 64
FRONT_ENDS = (0, 1, 2, 4, 8)
INSTANCES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Rung:
    """So many front ends before so many instances of a model."""

    front_ends: int
    instances: int

    @property
    def cores(self) -> int:
        """Those that are busy at most: of these processes, of the server's, and of the client."""
        return self.front_ends + self.instances + 2

    @property
    def name(self) -> str:
        return f"{counted(self.front_ends, 'front end')}, {counted(self.instances, 'instance')}"


def rungs(cores: int) -> Iterator[Rung]:
    """Those for which a machine has cores; without front ends and with one and two, one instance is measured anywhere."""
    for instances in INSTANCES:
        for front_ends in FRONT_ENDS:
            rung = Rung(front_ends, instances)
            if rung.cores <= cores or (instances == 1 and front_ends <= 2):
                yield rung


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Climb as far as the machine has cores; every other server takes its turn at each number of instances."""
    cores = len(os.sched_getaffinity(0))
    climbed = list(rungs(cores))
    progress.show(
        f"this machine has {cores} cores: {len(climbed)} of {len(FRONT_ENDS) * len(INSTANCES)} rungs make sense"
    )
    samples = []
    for instances in sorted({rung.instances for rung in climbed}):
        repository = scratch / f"models_{instances}"
        repositories.write_add_sub(repository, [repositories.ADD_SUB], instances=instances)
        own = [
            servers.pybackend_launcher(rung.name, [f"--front-ends={rung.front_ends}"])
            for rung in climbed
            if rung.instances == instances
        ]
        others = [each for each in launchers if each.name != servers.PYBACKEND]
        workloads: list[bodies.Workload | grpc_workloads.GrpcWorkload] = [
            bodies.add_sub_binary(),
            bodies.add_sub_json(),
            grpc_workloads.add_sub(),
        ]
        steps = [Step(each, Load(CONNECTIONS, plan.duration_s, plan.warm_up_s), plan.rounds) for each in workloads]
        with ExitStack() as stack:
            running = [stack.enter_context(each.start_with_grpc(repository)) for each in (*own, *others)]
            for server in running:
                bodies.check(server.port, workloads[0])  # type: ignore[arg-type]
            samples += take_turns(running, steps, scratch)
    return samples


@dataclass(frozen=True)
class Limits:
    """What a machine can answer at most, in requests per second, by what runs out first."""

    scheduling: float  # the server's process is busy
    accepting: float  # all front ends are
    executing: float  # all instances are
    cores: float  # all cores are

    @property
    def least(self) -> float:
        return min(self.scheduling, self.accepting, self.executing, self.cores)


def limits(windows: Sequence[LoadResult], rung: Rung, cores: int) -> Limits:
    """The limits that follow from the CPU time per request of each kind of process, where clients run elsewhere."""
    host, front_end, stub = (
        load_median(windows, lambda window, kind=kind: getattr(window, kind))  # type: ignore[misc]
        for kind in ("host_cpu_us", "front_end_cpu_us", "stub_cpu_us")
    )
    return Limits(
        1e6 / host,
        rung.front_ends * 1e6 / front_end if front_end else float("inf"),
        rung.instances * 1e6 / stub,
        cores * 1e6 / (host + front_end + stub),
    )
