"""GPUs of the machine, through NVIDIA's management library. The package nvidia-ml-py is optional, and imported late."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuFigures:
    """One GPU at one moment; None for figures that it does not have.

    Attributes:
        utilization: fraction of time in which it worked, from 0 to 1.
        memory_used_bytes: the part in use.
        energy_j: used since the server started.
    """

    uuid: str
    utilization: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None


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
        return GpuFigures(
            uuid.decode() if isinstance(uuid, bytes) else uuid,
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

    Args:
        gpu_count: number of GPUs that the server may use; without any, there is no warning.
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


FIELDS: Mapping[str, tuple[str, str, Callable[[GpuFigures], float | None]]] = {
    "nv_gpu_utilization": ("gauge", "GPU utilization rate [0.0 - 1.0)", lambda gpu: gpu.utilization),
    "nv_gpu_memory_total_bytes": ("gauge", "GPU total memory, in bytes", lambda gpu: gpu.memory_total_bytes),
    "nv_gpu_memory_used_bytes": ("gauge", "GPU used memory, in bytes", lambda gpu: gpu.memory_used_bytes),
    "nv_gpu_power_usage": ("gauge", "GPU power usage in watts", lambda gpu: gpu.power_w),
    "nv_gpu_power_limit": ("gauge", "GPU power management limit in watts", lambda gpu: gpu.power_limit_w),
    "nv_energy_consumption": (
        "counter",
        "GPU energy consumption in joules since the Triton Server started",
        lambda gpu: gpu.energy_j,
    ),
}
"""Metric families: type, help text, value."""
