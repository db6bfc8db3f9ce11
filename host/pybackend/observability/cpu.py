"""CPU utilisation and memory of the whole machine, from /proc."""

from __future__ import annotations

from pathlib import Path


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
