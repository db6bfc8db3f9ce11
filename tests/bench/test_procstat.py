"""Process clocks, trees and memory, read of real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.bench import procstat

# Starts a child, uses CPU time and memory when told to, and says when it is done.
PARENT = """
import subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
kept = []
for line in sys.stdin:
    if line.strip() == "work":
        def spin():
            while time.thread_time() < 0.1: pass
        worker = threading.Thread(target=spin)
        worker.start()
        worker.join()
    else:
        kept.append(b"x" * (32 << 20))
    print("done", flush=True)
child.communicate()
"""


class Family:
    """A process with one child."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin
        assert process.stdout
        self.pid = process.pid
        self._stdin, self._stdout = process.stdin, process.stdout
        self.child = int(self._stdout.readline())

    def tell(self, order: str) -> None:
        print(order, file=self._stdin, flush=True)
        assert self._stdout.readline() == "done\n"


@pytest.fixture
def family() -> Iterator[Family]:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Family(process)


def test_the_tree_holds_the_process_and_what_it_started(family: Family) -> None:
    assert procstat.process_tree(family.pid) == procstat.ProcessTree(family.pid, (family.child,))


def test_cpu_time_of_a_thread_that_ended_is_counted_for_its_process_only(family: Family) -> None:
    tree = procstat.process_tree(family.pid)
    before = procstat.cpu_times(tree)
    family.tell("work")
    used = procstat.cpu_times(tree).since(before)
    assert used.host_ns >= 100_000_000
    assert used.stub_ns < 50_000_000


def test_a_process_that_is_gone_has_no_clock() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        procstat.process_cpu_ns(process.pid)


def test_memory_and_its_peak_follow_what_the_process_takes(family: Family) -> None:
    before = procstat.memory(family.pid)
    with procstat.watched_memory(family.pid) as peak:
        family.tell("take memory")
    after = procstat.memory(family.pid)
    assert after.rss_bytes - before.rss_bytes >= 30 << 20
    assert after.pss_bytes - before.pss_bytes >= 30 << 20
    assert peak.rss_bytes >= after.rss_bytes


def test_private_memory_is_what_the_process_has_alone(family: Family) -> None:
    before = procstat.private_bytes(family.pid)
    family.tell("keep")
    assert procstat.private_bytes(family.pid) - before >= 32 << 20
    assert procstat.private_bytes(family.pid) <= procstat.memory(family.pid).rss_bytes
    assert procstat.name(family.pid).startswith("python")


def test_several_processes_are_added_up(family: Family) -> None:
    pids = (family.pid, family.child)
    each = [procstat.memory(pid) for pid in pids]
    with procstat.watched_memory(*pids) as peak:
        family.tell("take memory")
    assert peak.rss_bytes >= sum(memory.rss_bytes for memory in each) + (30 << 20)
    assert peak.pss_bytes <= peak.rss_bytes


def test_shared_memory_that_nobody_maps_is_counted() -> None:
    before = procstat.machine_shared_bytes()
    with open(os.memfd_create("bench"), "wb") as memory:
        memory.write(bytes(64 << 20))
        memory.flush()
        assert procstat.machine_shared_bytes() - before >= 32 << 20  # others may give some back meanwhile


def test_threads_are_counted(family: Family) -> None:
    assert procstat.threads(family.pid) == 1
