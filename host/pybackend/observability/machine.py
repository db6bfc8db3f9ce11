"""What the machine and the server's processes use: CPU, memory, GPUs, and delays of the event loop.

The machine's figures are read at intervals, so that several readers of the metrics page see the same ones. GPUs are read
through NVIDIA's management library: the package nvidia-ml-py is optional, and imported late.
"""

from __future__ import annotations

import asyncio
import logging
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.observability.metrics import Family, labels_text


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


class Machine:
    """The machine's latest figures."""

    def __init__(self, *, cpu: bool, gpus: GpuMeter | None) -> None:
        self._cpu = CpuMeter() if cpu else None
        self._gpus = gpus
        self._utilization = 0.0
        self._memory_bytes = (0, 0)
        self._gpu_figures: list[GpuFigures] = []
        self._failed = False
        self._look()

    async def watch(self, interval_s: float) -> None:
        """Read the figures at intervals until cancelled, in a thread: the kernel and the driver take their time."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await asyncio.to_thread(self._look)
            except Exception:  # the figures stay as they are, and the next look may succeed
                if not self._failed:
                    log.exception("CPU and GPU metrics cannot be read")
                self._failed = True

    def _look(self) -> None:
        if self._cpu is not None:
            self._utilization = self._cpu.utilization()
            self._memory_bytes = memory_bytes()
        if self._gpus is not None:
            self._gpu_figures = self._gpus.figures()

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
            for index, (name, kind, text) in enumerate(GPU_FAMILIES):
                values = [(labels_text({"gpu_uuid": uuid}), figures[index]) for uuid, figures in self._gpu_figures]
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


class GpuMeter:
    """Reads the GPUs."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._devices = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        self._energy_at_start_j = [self._energy_j(device) for device in self._devices]

    def figures(self) -> list[GpuFigures]:
        """The present figures of each GPU. Takes milliseconds."""
        return [self._of(device, start) for device, start in zip(self._devices, self._energy_at_start_j, strict=True)]

    def _of(self, device: Any, energy_at_start_j: float | None) -> GpuFigures:
        library, ask = self._library, self._ask
        uuid = library.nvmlDeviceGetUUID(device)
        memory = ask(library.nvmlDeviceGetMemoryInfo, device)
        energy_j = self._energy_j(device)
        rates = ask(library.nvmlDeviceGetUtilizationRates, device)
        return uuid.decode() if isinstance(uuid, bytes) else uuid, (
            None if rates is None else rates.gpu / 100,
            None if memory is None else memory.total,
            None if memory is None else memory.used,
            _scaled(ask(library.nvmlDeviceGetPowerUsage, device)),
            _scaled(ask(library.nvmlDeviceGetPowerManagementLimit, device)),
            None if energy_j is None or energy_at_start_j is None else energy_j - energy_at_start_j,
        )

    def _energy_j(self, device: Any) -> float | None:
        return _scaled(self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption, device))

    def _ask(self, question: Callable[[Any], Any], device: Any) -> Any:
        """The answer of the library, None if the GPU lacks the feature."""
        try:
            return question(device)
        except self._library.NVMLError:
            return None


def _scaled(thousandths: int | None) -> float | None:
    return None if thousandths is None else thousandths / 1000


def open_gpu_meter(gpu_count: int) -> GpuMeter | None:
    """A meter for the GPUs of this machine; None, with a warning, if they cannot be read.

    Without any that the server may use, there is no warning.
    """
    if not gpu_count:
        return None
    way_out = "or switch them off with --allow-gpu-metrics=false"
    try:
        import pynvml
    except ImportError:
        log.warning("no metrics of GPUs: install the package nvidia-ml-py, %s", way_out)
        return None
    try:
        pynvml.nvmlInit()
        return GpuMeter(pynvml)
    except pynvml.NVMLError as error:
        log.warning("no metrics of GPUs: NVIDIA's management library answers '%s'. Mend its driver, %s", error, way_out)
        return None


_PARENT, _CPU_TICKS, _RESIDENT_PAGES = 1, slice(11, 15), 21
"""Positions in /proc/<pid>/stat, counted from the end of the name: the parent, the times of the process and of those of its
children that have ended, and the pages that are in memory."""

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
