"""A machine with GPUs where there are none: the libraries of NVIDIA's driver are stood in for, and so are its device
files.

The libraries are found as anybody's are, by LD_LIBRARY_PATH. The device files lie in a /dev that only one process sees,
and those below it; any of them may be opened, and does what /dev/null does.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_MACHINE = """
set -e
mount -t tmpfs none "$1"
for name in null zero full random urandom tty ptmx fd stdin stdout stderr; do cp -a "/dev/$name" "$1"; done
mkdir "$1/shm" "$1/pts"
mount --bind /dev/shm "$1/shm"
for name in $2; do mkdir -p "$(dirname "$1/$name")"; mknod -m 666 "$1/$name" c 1 3; done
mount --bind "$1" /dev
if [ -d "$3" ]; then mount --bind "$3" /proc/driver; fi
shift 3
exec "$@"
"""


def _reason() -> str:
    """Why there can be no such machine here; empty if there can."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        return "only root can give a process a /dev of its own"
    if shutil.which("cc") is None:
        return "there is no compiler for the stand-in of the driver's libraries"
    return "" if importlib.util.find_spec("pynvml") else "nvidia-ml-py is not installed"


needs_stand_in = pytest.mark.skipif(bool(_reason()), reason=_reason())


class StandIn:
    """A machine with two GPUs, unless told otherwise; ``directory`` may hold what it is made of."""

    def __init__(self, directory: Path, **told: int) -> None:
        self._control = directory / "gpus"
        self._dev, self._driver = directory / "dev", directory / "driver"
        self.libraries = directory / "libraries"
        for path in (self._dev, self.libraries):
            path.mkdir(parents=True)
        directory.chmod(0o755)
        source = Path(__file__).with_name("driver.c")
        for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
            command = ["cc", "-shared", "-fPIC", "-O1", "-o", self.libraries / name, source]
            subprocess.run(command, check=True)
        self.tell(**told)

    def tell(self, **told: int) -> None:
        """Say what the driver answers from now on; see driver.c."""
        self._control.write_text("".join(f"{word} {value}\n" for word, value in {"gpus": 2, **told}.items()))

    def capability(self, path: str, minor: int) -> None:
        """Let the driver grant something, such as a part of a GPU, by a device file."""
        file = self._driver / "nvidia" / "capabilities" / path / "access"
        file.parent.mkdir(parents=True)
        file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")

    def python(self, *more: str, left_out: str = "", program: str = sys.executable) -> list[str]:
        """The command of a Python that runs on the machine, which has these device files too and lacks one."""
        names = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", *more} - {left_out}
        arguments = [self._dev, " ".join(sorted(names)), self._driver, program]
        return ["unshare", "-m", "sh", "-c", _MACHINE, "sh", *map(str, arguments)]

    def environment(self, **variables: str) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {
            **inherited,
            "LD_LIBRARY_PATH": str(self.libraries),
            "STAND_IN_GPUS": str(self._control),
            **variables,
        }
