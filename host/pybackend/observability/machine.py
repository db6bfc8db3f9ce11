"""CPU, memory and GPUs of the machine, read at intervals: several readers of the metrics page see the same figures.

CPU and memory come from /proc.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

from pybackend.observability.gpu import FIELDS, GpuFigures, GpuMeter
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
            for name, (kind, text, value_of) in FIELDS.items():
                values = [(labels_text({"gpu_uuid": gpu.uuid}), value_of(gpu)) for gpu in self._gpu_figures]
                yield Family(name, kind, text, [("", labels, value) for labels, value in values if value is not None])


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [("", "", value)])
