"""What the machine and the server's processes use: CPU, memory, GPUs, and delays of the event loop.

The machine's figures are read at intervals, so that several readers of the metrics page see the same ones. GPUs are
read through NVIDIA's management library.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pybackend.gpus import Gpus
from pybackend.observability.metrics import Family, labels_text
from pybackend.threads import start_thread


class CpuMeter:
    """Utilisation of all cores between two calls."""

    def __init__(self) -> None:
        self._busy, self._total = _cpu_ticks()

    def utilization(self) -> float:
        """Fraction of time since the last call that was not idle, from 0 to 1."""
        busy, total = _cpu_ticks()
        elapsed = total - self._total
        share = (busy - self._busy) / elapsed if elapsed > 0 else 0.0
        self._busy, self._total = busy, total
        return min(1.0, max(0.0, share))


def _cpu_ticks() -> tuple[int, int]:
    """Non-idle ticks, and all ticks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    total = sum(fields)
    return total - fields[3] - fields[4], total


def memory_bytes() -> tuple[int, int]:
    """The machine's total memory, and the part in use."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    return fields["MemTotal"], fields["MemTotal"] - fields["MemAvailable"]


log = logging.getLogger(__name__)


class MachineMeter:
    """The machine's latest figures."""

    def __init__(self, *, cpu: bool, gpus: GpuMeter | None) -> None:
        self._cpu = CpuMeter() if cpu else None
        self._gpus = gpus
        self._utilization = 0.0
        self._memory_bytes = (0, 0)
        self._failed = False
        self._look()

    async def watch(self, interval_s: float) -> None:
        """Read the figures at intervals until cancelled, in threads: the kernel and the driver take their time."""
        if self._gpus is not None:
            self._gpus.start(interval_s)
        try:
            while True:
                await asyncio.sleep(interval_s)
                await self._look_again()
        finally:
            if self._gpus is not None:
                self._gpus.close()

    async def _look_again(self) -> None:
        try:
            await asyncio.to_thread(self._look)
        except Exception:  # the figures stay as they are, and the next look may succeed
            if not self._failed:
                log.exception("CPU metrics cannot be read")
            self._failed = True

    def _look(self) -> None:
        if self._cpu is not None:
            self._utilization = self._cpu.utilization()
            self._memory_bytes = memory_bytes()

    def families(self) -> Iterator[Family]:
        """The machine's metric families."""
        # Without a GPU there is no pinned memory, but dashboards expect the families.
        yield _gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0)
        yield _gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0)
        if self._cpu is not None:
            total_bytes, used_bytes = self._memory_bytes
            yield _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._utilization)
            yield _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total_bytes)
            yield _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used_bytes)
        if self._gpus is not None:
            latest = self._gpus.latest
            for index, (name, kind, text) in enumerate(GPU_FAMILIES):
                values = [(labels_text({"gpu_uuid": uuid}), figures[index]) for uuid, figures in latest]
                yield Family(name, kind, text, [("", labels, value) for labels, value in values if value is not None])


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [("", "", value)])


GpuFigures = tuple[str, Sequence[float | None]]
"""The uuid of a GPU, and a figure for each of :data:`GPU_FAMILIES`; None for one that it does not have."""

GPU_FAMILIES = (
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)"),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes"),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes"),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts"),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts"),
    ("nv_energy_consumption", "counter", "GPU energy consumption in joules since the Triton Server started"),
)


_LATE_S, _LATE_LOOKS = 10.0, 5
"""Figures that are older than this, and than so many intervals, are not shown."""


class GpuMeter:
    """Reads the GPUs with these names, in a separate thread: a driver that hangs holds up nothing else."""

    def __init__(self, library: Any, uuids: Sequence[str]) -> None:
        self._library = library
        self._uuids = uuids
        self._energy_at_start_j: dict[str, float | None] = {}
        self._latest: list[GpuFigures] = []
        self._read_s = time.monotonic()
        self._late_s = _LATE_S
        self._end = threading.Event()
        self._complaints: set[tuple[str, str]] = set()

    def start(self, interval_s: float) -> None:
        """Read them at intervals until :meth:`close`."""
        self._late_s = max(_LATE_S, _LATE_LOOKS * interval_s)
        start_thread(partial(self._watch, interval_s), "pybackend-gpus")

    def close(self) -> None:
        self._end.set()

    @property
    def latest(self) -> list[GpuFigures]:
        """The figures of the last look; none if the driver has not answered since long ago."""
        if time.monotonic() - self._read_s > self._late_s:
            self._complain(f"nothing for {self._late_s:g} s")
            return []
        return self._latest

    def _watch(self, interval_s: float) -> None:
        is_open = False
        while not self._end.is_set():
            try:
                if not is_open:
                    self._library.nvmlInit()
                    is_open = True
                self._latest = self.figures()
            except self._library.NVMLError as error:
                self._latest = []
                self._complain(error)
            self._read_s = time.monotonic()
            self._end.wait(interval_s)
        if is_open:
            with suppress(self._library.NVMLError):
                self._library.nvmlShutdown()

    def _complain(self, answer: object, gpu: str = "GPUs") -> None:
        """Say once what the driver answers instead of figures."""
        complaint = gpu, str(answer)
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            way_out = "See nvidia-smi, or switch them off by --allow-gpu-metrics=false"
            log.warning("no metrics of %s: the NVIDIA driver answers '%s'. %s", *complaint, way_out)

    def figures(self) -> list[GpuFigures]:
        """The present figures of each GPU that answers. Takes milliseconds."""
        found = []
        for uuid in self._uuids:
            try:
                found.append(self._of(uuid, self._library.nvmlDeviceGetHandleByUUID(uuid)))
            except self._library.NVMLError as error:
                self._complain(error, uuid)
        return found

    def _of(self, uuid: str, device: Any) -> GpuFigures:
        library, ask = self._library, self._ask
        memory = ask(library.nvmlDeviceGetMemoryInfo, device)
        energy_j = _scaled(ask(library.nvmlDeviceGetTotalEnergyConsumption, device))
        start_j = self._energy_at_start_j.setdefault(uuid, energy_j)
        rates = ask(library.nvmlDeviceGetUtilizationRates, device)
        return uuid, (
            None if rates is None else rates.gpu / 100,
            None if memory is None else memory.total,
            None if memory is None else memory.used,
            _scaled(ask(library.nvmlDeviceGetPowerUsage, device)),
            _scaled(ask(library.nvmlDeviceGetPowerManagementLimit, device)),
            None if energy_j is None or start_j is None else energy_j - start_j,
        )

    def _ask(self, question: Callable[[Any], Any], device: Any) -> Any:
        """The answer of the library, None if the GPU lacks the feature."""
        try:
            return question(device)
        except self._library.NVMLError:
            return None


def _scaled(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / 1000


def open_gpu_meter(gpus: Gpus) -> GpuMeter | None:
    """A meter for the GPUs that the server may use; None without any."""
    if not gpus.found:
        return None
    import pynvml

    return GpuMeter(pynvml, [gpu.uuid for gpu in gpus.found])


_PARENT, _CPU_TICKS, _RESIDENT_PAGES = 1, slice(11, 15), 21
"""Positions in /proc/<pid>/stat, counted from the end of the name: the parent, the times of the process and of those of
its children that have ended, and the pages that are in memory."""

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ProcessUsage:
    """The usage of some processes.

    Resident sets are added up. Pages that several processes share count for each: to divide them (Pss), the kernel
    would have to visit every page. ``cpu_s`` is user and system time since their start, with that of children that
    have ended.
    """

    resident_bytes: int = 0
    cpu_s: float = 0.0


def usage_of(pids: Iterable[int]) -> dict[int, ProcessUsage]:
    """Sum the usage of each process and of all its descendants, without those that have ended.

    Blocking: it takes about 15 us for each process of the machine.
    """
    found, children = _all_processes()
    totals = {pid: ProcessUsage() for pid in pids if pid in found}
    for pid, total in totals.items():
        waiting = [pid]
        while waiting:
            one = waiting.pop()
            total.resident_bytes += found[one].resident_bytes
            total.cpu_s += found[one].cpu_s
            waiting += children[one]
    return totals


def processes_below(pid: int) -> list[dict[str, str | int | float]]:
    """A process and all its descendants: number, name, memory and processor time of each.

    Blocking: it takes about 15 us for each process of the machine.
    """
    found, children = _all_processes()
    rows: list[dict[str, str | int | float]] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop(0)
        if one in found:
            usage = found[one]
            name = "server" if one == pid else _name_of(one)
            rows.append(
                {"pid": one, "name": name, "resident_bytes": usage.resident_bytes, "cpu_s": round(usage.cpu_s, 2)}
            )
        waiting += sorted(children[one])
    return rows


def _all_processes() -> tuple[dict[int, ProcessUsage], defaultdict[int, list[int]]]:
    found: dict[int, ProcessUsage] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it has ended
                _read(int(name), found, children)
    return found, children


_LONGEST_NAME = 60


def _name_of(pid: int) -> str:
    """The first word of a process's command line, which models' processes set; its program's name if it has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(4096)
        with open(f"/proc/{pid}/comm", "rb") as file:
            program = file.read(64)
    except OSError:  # it has ended
        return ""
    first = line.partition(b"\0")[0].strip()
    return (program if first.startswith(b"/") or not first else first).decode(errors="replace").strip()[:_LONGEST_NAME]


def _read(pid: int, found: dict[int, ProcessUsage], children: defaultdict[int, list[int]]) -> None:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    found[pid] = ProcessUsage(int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES, sum(map(int, fields[_CPU_TICKS])) * _TICK_S)
    children[int(fields[_PARENT])].append(pid)


BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_PERIOD_S = 0.25


class LoopLag:
    """How late the event loop calls its timers, as a histogram: it is late while a callback runs for long.

    The last of ``counts`` has no bound.
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
