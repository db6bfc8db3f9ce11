"""Which GPUs this machine has, as far as placing instances needs to know."""

from __future__ import annotations

import os
import re
from pathlib import Path

_DEVICE = re.compile(r"nvidia\d+")


def count_gpus(devices: Path = Path("/dev")) -> int:
    """Number of NVIDIA GPUs that this process can open; 0 if ``TRITON_SERVER_CPU_ONLY`` is set."""
    if os.environ.get("TRITON_SERVER_CPU_ONLY"):
        return 0
    return sum(
        _DEVICE.fullmatch(device.name) is not None and os.access(device, os.R_OK | os.W_OK)
        for device in devices.iterdir()
    )
