"""GPU figures from a stand-in for NVIDIA's library: tests cannot count on a GPU."""

from types import SimpleNamespace

from pybackend.observability.machine import GpuMeter


class _LibraryError(Exception):
    pass


class _Library:
    """Two GPUs; the second lacks what consumer cards lack."""

    NVMLError = _LibraryError

    def __init__(self):
        self.energy_mj = 5_000

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802  the library's names
        return int(uuid.removeprefix("GPU-"))

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
    meter = GpuMeter(library, ["GPU-0", "GPU-1"])
    assert meter.figures()[0][1][-1] == 0
    library.energy_mj = 7_500
    assert meter.figures() == [
        ("GPU-0", (0.25, 1000, 10, 70.5, 700, 2.5)),
        ("GPU-1", (0.25, 1000, 11, None, None, None)),
    ]
