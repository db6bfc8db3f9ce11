"""Start-up: from the start of the process to the first 200 on the readiness route, and what one more model adds.

The floor of any server in Python is the import of its web stack, so that is timed in the same rounds, in the same
interpreter.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import procstat, progress, repositories, servers
from tests.bench.plan import Plan

WEB_STACK = "import of the web stack"
_IMPORT = [sys.executable, "-c", "import fastapi, uvicorn, uvloop, httptools"]


@dataclass(frozen=True)
class StartSample:
    """One start.

    Attributes:
        server: which server, or ``WEB_STACK``.
        models: how many models the repository holds.
        seconds: until ready, or until the import's process ended.
        foreign_cores: CPU time of anything else on the machine meanwhile, in cores; processes that a server started
            and ended on the way count as such.
    """

    server: str
    models: int
    round: int
    seconds: float
    foreign_cores: float


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[StartSample]:
    """Start every server on repositories of several sizes, in turn, several times."""
    repository_of = {models: scratch / f"models-{models}" for models in plan.start_models}
    for models, repository in repository_of.items():
        repositories.write_copies(repository, models)
    time_import(-1)  # the files come from the disk the first time
    for launcher in launchers:
        _time_start(launcher, repository_of[plan.start_models[0]], plan.start_models[0], -1)
    samples: list[StartSample] = []
    for round_ in range(plan.start_rounds):
        samples.append(time_import(round_))
        for models, repository in repository_of.items():
            samples += [_time_start(launcher, repository, models, round_) for launcher in launchers]
    return samples


def time_import(round_: int) -> StartSample:
    """Time an interpreter that imports what pybackend's front end stands on, and nothing else."""
    machine_ns, _ = procstat.machine_cpu_ns()
    own_s = _own_cpu_s()
    began = time.perf_counter()
    subprocess.run(_IMPORT, check=True)
    seconds = time.perf_counter() - began
    busy_s = (procstat.machine_cpu_ns()[0] - machine_ns) / 1e9
    sample = StartSample(WEB_STACK, 0, round_, seconds, (busy_s - (_own_cpu_s() - own_s)) / seconds)
    progress.show(f"{WEB_STACK}: {seconds:.3f} s")
    return sample


def _time_start(launcher: servers.Launcher, repository: Path, models: int, round_: int) -> StartSample:
    machine_ns, _ = procstat.machine_cpu_ns()
    own_s = _own_cpu_s()
    with launcher.start(repository) as server:
        cpu = procstat.cpu_times(server.tree())
        own_s = _own_cpu_s() - own_s
        busy_s = (cpu.machine_ns - machine_ns - cpu.host_ns - cpu.stub_ns) / 1e9
        foreign_cores = (busy_s - own_s) / server.ready_s
        progress.show(f"start of {server.name} with {models} models: ready after {server.ready_s:.3f} s")
        return StartSample(server.name, models, round_, server.ready_s, foreign_cores)


def _own_cpu_s() -> float:
    """CPU time of this process and of the children it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
