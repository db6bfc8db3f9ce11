"""A busy machine, made on purpose: programs that want every core, and processes that are stopped for milliseconds.

The second is a stand-in for a hypervisor that takes a core away. The kernel of the machine then believes that a process
runs which does not, and whatever a server concludes from the clock is wrong.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tests.bench import bodies, repositories, servers
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.procstat import ProcessTree
from tests.bench.turns import LoadSample, Step, take_turns

STALLS_PER_S = 20
SHORTEST_STALL_S, LONGEST_STALL_S = 0.001, 0.005
SEED = 20
COMPETITORS = "a competitor on each core"
STALLS = f"{STALLS_PER_S} stalls a second"

_COMPETITOR = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"

Noise = Callable[[Sequence[servers.RunningServer]], AbstractContextManager[None]]


def workload_name(request: str, noise: str) -> str:
    """How tables call a request that is sent beside some noise."""
    return f"{request}, {noise}"


@contextmanager
def competitors(_running: Sequence[servers.RunningServer]) -> Iterator[None]:
    """Keep every core busy with a program that never sleeps."""
    programs = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", _COMPETITOR, str(core)])
        for core in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextmanager
def stalls(running: Sequence[servers.RunningServer]) -> Iterator[None]:
    """Stop one process of each server at a time, for a random one to five milliseconds; the same times in each run."""
    ended = threading.Event()
    threads = [threading.Thread(target=_stall, args=(server.tree(), ended), daemon=True) for server in running]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _stall(tree: ProcessTree, ended: threading.Event) -> None:
    chance = random.Random(SEED)
    while not ended.wait(chance.expovariate(STALLS_PER_S)):
        pid = chance.choice([tree.host, *tree.stubs])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                ended.wait(chance.uniform(SHORTEST_STALL_S, LONGEST_STALL_S))
            finally:
                os.kill(pid, signal.SIGCONT)


KINDS: dict[str, Noise] = {COMPETITORS: competitors, STALLS: stalls}


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Put one connection, and many, on every server while the machine is busy.

    Args:
        launchers: the servers.
        plan: rounds, connections and times.
        scratch: an empty directory to write in.
    """
    repository = scratch / "models"
    repositories.write_pair(repository)
    plain = bodies.add_sub_binary()
    samples: list[LoadSample] = []
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in launchers]
        for server in running:
            bodies.check(server.port, plain)
        for name, noise in KINDS.items():
            workload = replace(plain, name=workload_name(plain.name, name))
            steps = [
                Step(workload, Load(connections, plan.duration_s, plan.warm_up_s), plan.single_rounds)
                for connections in (min(plan.connections), plan.busy_connections)
            ]
            with noise(running):
                samples += take_turns(running, steps, scratch)
    return samples
