"""The noise of the benchmark: processes really stop, and all of them go on afterwards."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench import noise, procstat, servers

DEADLINE_S = 60


def state(pid: int) -> str:
    """The state of a process: R, S, T for stopped, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def seen(pid: int, wanted: str) -> bool:
    """Whether a process comes into this state in time."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if state(pid) == wanted:
            return True
    return False


def test_stalls_stop_a_server_for_moments_and_leave_it_running() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with noise.stalls([servers.RunningServer("any", 1, process.pid, 0.0)]):
            assert all(seen(process.pid, wanted) for wanted in "TSTS")
        assert seen(process.pid, "S")
        process.communicate(b"\n")


def test_a_competitor_runs_on_every_core_and_ends() -> None:
    before = set(procstat.process_tree(os.getpid()).stubs)
    with noise.competitors([]):
        competitors = set(procstat.process_tree(os.getpid()).stubs) - before
        cores = os.sched_getaffinity(0)
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            taken = [os.sched_getaffinity(pid) for pid in competitors]
            if all(len(each) == 1 for each in taken):
                break
        assert set.union(*taken) == cores
        assert len(taken) == len(cores)
    assert not competitors & set(procstat.process_tree(os.getpid()).stubs)
