"""What the server costs: memory and processor time of its processes, from one reading of /proc, and delays of its event loop."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_PARENT, _CPU_TICKS, _RESIDENT_PAGES = 1, slice(11, 15), 21
"""Positions in /proc/<pid>/stat, counted from the end of the name: the parent, the times of the process and of those of its
children that have ended, and the pages that are in memory."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ProcessUsage:
    """The usage of some processes.

    Attributes:
        resident_bytes: the sum of their resident sets. Pages that several of them share count for each: to divide them
            (Pss), the kernel would have to visit every page.
        cpu_s: user and system time since their start, with that of children that have ended.
    """

    resident_bytes: int = 0
    cpu_s: float = 0.0


def usage_of(pids: Iterable[int]) -> dict[int, ProcessUsage]:
    """Sum the usage of each process and of all its descendants, without those that have ended.

    Blocking: it takes about 15 us for each process of the machine.
    """
    found: dict[int, ProcessUsage] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it has ended
                _read(int(name), found, children)
    totals = {pid: ProcessUsage() for pid in pids if pid in found}
    for pid, total in totals.items():
        waiting = [pid]
        while waiting:
            one = waiting.pop()
            total.resident_bytes += found[one].resident_bytes
            total.cpu_s += found[one].cpu_s
            waiting += children[one]
    return totals


def _read(pid: int, found: dict[int, ProcessUsage], children: defaultdict[int, list[int]]) -> None:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    found[pid] = ProcessUsage(int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES, sum(map(int, fields[_CPU_TICKS])) * _TICK_S)
    children[int(fields[_PARENT])].append(pid)


BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_PERIOD_S = 0.25


class LoopLag:
    """How late the event loop calls its timers, as a histogram: it is late while a callback runs for long.

    Attributes:
        counts: timers by their delay; the last one has no bound.
        sum_s: of all delays.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            late_s = max(0.0, loop.time() - due_s)
            self.sum_s += late_s
            self.counts[bisect_left(BOUNDS_S, late_s)] += 1
