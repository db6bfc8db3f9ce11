"""What /proc and the process clocks tell about a server: CPU time, memory and threads, by group of processes.

A served model is always two kinds of process: the ``host``, which is the process that was started, and the ``stub``
group, which is everything below it and runs the models. CPU times come from each process's own clock, in nanoseconds
and including threads that have ended; /proc/PID/stat would only count ticks of 10 ms.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_KIB = 1024
SAMPLE_PERIOD_S = 0.02


@dataclass(frozen=True)
class ProcessTree:
    """A server's processes.

    Attributes:
        host: pid of the process that was started.
        stubs: pids of all its descendants, but for front ends.
        front_ends: pids of these.
    """

    host: int
    stubs: tuple[int, ...]
    front_ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class CpuTimes:
    """CPU time so far, user and system together, in nanoseconds.

    Attributes:
        host_ns: of the host process.
        stub_ns: of all stubs together.
        front_end_ns: of all front ends together.
        machine_ns: of everything that ran on the machine.
        steal_ns: what the hypervisor gave to others while this machine wanted to run.
    """

    host_ns: int
    stub_ns: int
    front_end_ns: int
    machine_ns: int
    steal_ns: int

    def since(self, earlier: CpuTimes) -> CpuTimes:
        """The CPU time between ``earlier`` and this moment."""
        return CpuTimes(
            self.host_ns - earlier.host_ns,
            self.stub_ns - earlier.stub_ns,
            self.front_end_ns - earlier.front_end_ns,
            self.machine_ns - earlier.machine_ns,
            self.steal_ns - earlier.steal_ns,
        )


@dataclass(frozen=True)
class Memory:
    """Memory of one or several processes in bytes: resident pages, and their proportional share of them."""

    rss_bytes: int
    pss_bytes: int


@dataclass
class PeakMemory:
    """The largest values that were seen while the memory was watched."""

    rss_bytes: int = 0
    pss_bytes: int = 0


def process_tree(host: int) -> ProcessTree:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = list(children.get(host, ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, ())
    front_ends = {pid for pid in found if _command(pid).startswith(b"pybackend front end")}
    return ProcessTree(host, tuple(sorted(set(found) - front_ends)), tuple(sorted(front_ends)))


def process_cpu_ns(pid: int) -> int:
    """CPU time of one process, all its threads of past and present included.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise ProcessLookupError(pid)
    return time.clock_gettime_ns(clock.value)


def cpu_times(tree: ProcessTree) -> CpuTimes:
    """Read the clocks of a server's processes and of the machine."""
    machine_ns, steal_ns = machine_cpu_ns()
    stub_ns, front_end_ns = (sum(map(process_cpu_ns, pids)) for pids in (tree.stubs, tree.front_ends))
    return CpuTimes(process_cpu_ns(tree.host), stub_ns, front_end_ns, machine_ns, steal_ns)


def machine_cpu_ns() -> tuple[int, int]:
    """CPU time of the whole machine, idle time left out, and the time stolen from it."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq) * _TICK_NS, steal * _TICK_NS


def memory(*pids: int) -> Memory:
    """Memory of one process, or of several added up; walks page tables, so not for the middle of a timed window."""
    each = [_fields(Path(f"/proc/{pid}/smaps_rollup")) for pid in pids]
    return Memory(sum(_kib(fields["Rss"]) for fields in each), sum(_kib(fields["Pss"]) for fields in each))


def private_bytes(pid: int) -> int:
    """Memory that no other process has: what the end of this one would free."""
    fields = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return _kib(fields["Private_Clean"]) + _kib(fields["Private_Dirty"])


def name(pid: int) -> str:
    """What a process calls itself, up to 15 characters."""
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()


def machine_shared_bytes() -> int:
    """All shared memory of the machine, mapped by some process or not: /dev/shm, memfds, tmpfs."""
    return _kib(_fields(Path("/proc/meminfo"))["Shmem"])


def threads(pid: int) -> int:
    """How many threads a process has."""
    return int(_fields(Path(f"/proc/{pid}/status"))["Threads"])


@contextmanager
def watched_memory(*pids: int) -> Iterator[PeakMemory]:
    """Sample the memory of one or several processes every 20 ms; what is yielded holds the peaks of their sum.

    The kernel's own high-water marks, reset at the start, catch a peak of resident memory between two samples; those of
    several processes, which need not lie at the same moment, are added up.
    """
    peak = PeakMemory()
    stop = threading.Event()
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")

    def sample() -> None:
        now = memory(*pids)
        peak.pss_bytes = max(peak.pss_bytes, now.pss_bytes)
        peak.rss_bytes = max(peak.rss_bytes, now.rss_bytes)

    def sample_until_stopped() -> None:
        while not stop.wait(SAMPLE_PERIOD_S):
            sample()

    sample()
    sampler = threading.Thread(target=sample_until_stopped, name="memory-sampler")
    sampler.start()
    try:
        yield peak
    finally:
        stop.set()
        sampler.join()
    peak.rss_bytes = max(peak.rss_bytes, sum(_kib(_fields(Path(f"/proc/{pid}/status"))["VmHWM"]) for pid in pids))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None  # it ended while we looked
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _kib(value: str) -> int:
    return int(value.removesuffix("kB")) * _KIB
