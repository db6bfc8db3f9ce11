"""GPU figures from a stand-in for NVIDIA's library: tests cannot count on a GPU."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from pybackend.observability.machine import GpuMeter, Machine, open_gpu_meter
from pybackend.observability.metrics import lines


class _LibraryError(Exception):
    pass


class _Library:
    """Two GPUs; the second lacks what consumer cards lack."""

    NVMLError = _LibraryError

    def __init__(self):
        self.energy_mj = 5_000

    def nvmlDeviceGetCount(self):  # noqa: N802  the library's names
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, device):  # noqa: N802
        return f"GPU-{device}"

    def nvmlDeviceGetMemoryInfo(self, device):  # noqa: N802
        return SimpleNamespace(total=1000, used=10 + device)

    def nvmlDeviceGetUtilizationRates(self, _device):  # noqa: N802
        return SimpleNamespace(gpu=25)

    def nvmlDeviceGetPowerUsage(self, device):  # noqa: N802
        return self._only_first(device, 70_500)

    def nvmlDeviceGetPowerManagementLimit(self, device):  # noqa: N802
        return self._only_first(device, 700_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, device):  # noqa: N802
        return self._only_first(device, self.energy_mj)

    def _only_first(self, device, value):
        if device:
            raise _LibraryError
        return value


def test_figures_and_those_that_a_gpu_lacks():
    library = _Library()
    meter = GpuMeter(library)
    library.energy_mj = 7_500
    assert meter.figures() == [
        ("GPU-0", (0.25, 1000, 10, 70.5, 700, 2.5)),
        ("GPU-1", (0.25, 1000, 11, None, None, None)),
    ]


def test_families():
    text = "".join(lines(Machine(cpu=False, gpus=GpuMeter(_Library())).families()))
    assert 'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25\n' in text
    assert 'nv_gpu_power_usage{gpu_uuid="GPU-0"} 70.5\n' in text
    assert 'nv_gpu_power_usage{gpu_uuid="GPU-1"}' not in text
    assert "# TYPE nv_energy_consumption counter\n" in text
    assert "nv_cpu_utilization" not in text


def test_a_machine_without_gpus_needs_no_library(caplog):
    with caplog.at_level(logging.WARNING):
        assert open_gpu_meter(0) is None
    assert caplog.text == ""
