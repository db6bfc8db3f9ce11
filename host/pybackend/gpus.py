"""The GPUs of this machine, as NVIDIA's management library (NVML) names them, and what a process needs to use some of them.

The package nvidia-ml-py is optional, and imported only where there is a driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pybackend.threads import start_thread
from pybackend_wire.confinement import LIBRARY_PATH
from pybackend_wire.installation import install_command

VISIBLE, LIBRARIES = "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"

ANSWER_LIMIT_S = 60.0
"""How long the driver may take to name its GPUs. Without NVIDIA's persistence daemon it first wakes each for seconds.
"""

_CONTROL, _CAPABILITIES = "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap"
_COMMON_FILES = (_CONTROL, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_OTHER_FILES = ("/dev/dri", "/dev/kfd")
"""Device files of other makers' GPUs, which models of kind ``MODEL`` may use. The server does not count those GPUs."""

_DRIVER = Path("/proc/driver/nvidia")
_MINOR = re.compile(r"DeviceFileMinor: (\d+)")

_NO_DRIVER = f"This machine has no NVIDIA driver: there is no {_CONTROL}."

_WAYS_OUT = {  # by NVML's number of the error
    4: "Let the server's user read and write /dev/nvidia*: the driver's option NVreg_DeviceFileMode=0666 does so.",
    9: "Load it (modprobe nvidia), or install it again.",
    12: "libnvidia-ml.so.1 comes with the driver: start a container with --gpus (NVIDIA Container Toolkit), or name the "
    "library's directory in LD_LIBRARY_PATH.",
    13: "The driver is too old: install a newer one.",
    18: "The driver was updated while it was in use: restart the machine.",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG device, which is a part of one."""

    uuid: str
    visible: str  # its name in CUDA_VISIBLE_DEVICES
    name: str
    memory_bytes: int
    files: tuple[str, ...]  # its device files, which no other GPU has

    def __str__(self) -> str:
        memory = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
        return f"{self.name}{memory}, {self.uuid}"


@dataclass(frozen=True)
class GpuAccess:
    """What a process may use of the GPUs: ``visible`` is its CUDA_VISIBLE_DEVICES, None for that of the server."""

    visible: str | None = ""
    files: tuple[str, ...] = ()
    libraries: str = ""  # the directory of the driver's libraries
    library_path: str = ""  # likewise, if the loader looks there only because LD_LIBRARY_PATH says so

    def variables(self, inherited: Mapping[str, str | None]) -> dict[str, str]:
        """The variables to set for a process that would have these otherwise."""
        found = {} if self.visible is None else {VISIBLE: self.visible}
        usual = [each for each in (inherited.get(LIBRARIES) or "").split(":") if each]
        if self.library_path and self.library_path not in usual:
            found[LIBRARIES] = ":".join([*usual, self.library_path])
            if LIBRARY_PATH in inherited:
                found[LIBRARY_PATH] = found[LIBRARIES]
        return found


NO_GPU = GpuAccess()


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a server, by their numbers in instance groups."""

    found: tuple[Gpu, ...] = ()
    reason: str = _NO_DRIVER  # a sentence: why there are none, with the way out
    is_fault: bool = False  # whether there is a driver all the same
    driver: str = ""  # its version
    cuda: str = ""  # the newest version of CUDA that it serves
    libraries: str = ""  # the directory of its libraries
    library_path: str = ""  # likewise; see GpuAccess

    def access(self, kind: str, device_id: int) -> GpuAccess:
        """What an instance may use: its own GPU, of kind ``MODEL`` all, other makers' too, of kind ``CPU`` none."""
        if kind == "MODEL":
            return self._access(None, self.found, tuple(filter(os.path.exists, _OTHER_FILES)))
        if kind != "GPU" or not 0 <= device_id < len(self.found):  # without such a GPU, its model is refused
            return NO_GPU
        own = self.found[device_id]
        return self._access(own.visible, [own])

    def _access(self, visible: str | None, chosen: Sequence[Gpu], others: tuple[str, ...] = ()) -> GpuAccess:
        if not chosen:
            return GpuAccess(visible, others)
        files = (*_COMMON_FILES, *dict.fromkeys(path for gpu in chosen for path in gpu.files), *others)
        return GpuAccess(visible, files, self.libraries, self.library_path)

    @property
    def summary(self) -> str:
        """A sentence: what there is, or why there is nothing."""
        names = "; ".join(f"GPU {number}: {gpu}" for number, gpu in enumerate(self.found))
        return f"This machine has {names}." if names else self.reason


def needed_mode(path: str) -> int:
    """The access that a process needs to a device file, as for ``os.access``.

    A file that grants a part of a GPU is only read.
    """
    return os.R_OK if path.startswith(_CAPABILITIES) else os.R_OK | os.W_OK


def find_gpus(environment: Mapping[str, str] = os.environ) -> Gpus:
    """Ask the driver for the GPUs that this process may use.

    Blocking; a driver that hangs is given up after a minute.
    """
    if environment.get("TRITON_SERVER_CPU_ONLY"):
        return Gpus(reason="TRITON_SERVER_CPU_ONLY is set: the server uses no GPU.")
    if not (os.path.exists(_CONTROL) or (_DRIVER / "version").exists()):
        return Gpus()
    try:
        import pynvml
    except ImportError:
        reason = f"The server cannot ask the NVIDIA driver for its GPUs: {install_command('gpu')}."
        return Gpus(reason=reason, is_fault=True)
    answers: list[Gpus] = []
    start_thread(lambda: answers.append(_ask(pynvml, environment)), "pybackend-gpus").join(ANSWER_LIMIT_S)
    late = f"The NVIDIA driver has not named its GPUs within {ANSWER_LIMIT_S:g} s. See whether nvidia-smi does."
    return answers[0] if answers else Gpus(reason=late, is_fault=True)


def _ask(library: Any, environment: Mapping[str, str]) -> Gpus:
    try:
        library.nvmlInit()
        try:
            return _found(library, environment)
        finally:
            library.nvmlShutdown()
    except library.NVMLError as error:
        advice = _WAYS_OUT.get(error.value, "nvidia-smi may say more.")
        words = str(error).rstrip(".")
        return Gpus(reason=f"The NVIDIA driver answers '{words}'. {advice}", is_fault=True)


def _found(library: Any, environment: Mapping[str, str]) -> Gpus:
    count = library.nvmlDeviceGetCount()
    present = {number: list(_devices(library, number, count)) for number in range(count)}
    directory = _library_directory()
    searched = [path for path in environment.get(LIBRARIES, "").split(":") if path]
    facts = partial(
        Gpus,
        driver=library.nvmlSystemGetDriverVersion(),
        cuda=_cuda_version(library),
        libraries=directory,
        library_path=directory if directory in map(os.path.realpath, searched) else "",
    )
    if not count:
        return facts(reason="The NVIDIA driver says 'No devices were found'. nvidia-smi may say more.", is_fault=True)
    chosen = _chosen(present, environment.get(VISIBLE))
    if not chosen:
        return facts(
            reason=f"{VISIBLE}={environment[VISIBLE]!r} hides the {count} GPUs of this machine.", is_fault=True
        )
    closed = [path for gpu in chosen for path in (_CONTROL, *gpu.files) if not os.access(path, needed_mode(path))]
    if closed:
        return facts(reason=f"The server's user may not open {closed[0]}. {_WAYS_OUT[4]}", is_fault=True)
    return facts(found=tuple(chosen), reason="")


def _devices(library: Any, number: int, count: int) -> Iterator[Gpu]:
    """The GPU with this number of the driver's, or its MIG devices, if it is divided into those."""
    handle = library.nvmlDeviceGetHandleByIndex(number)
    minor = library.nvmlDeviceGetMinorNumber(handle)
    file = f"/dev/nvidia{minor}"
    parts = _parts(library, handle)
    if parts is None:
        uuid, name = library.nvmlDeviceGetUUID(handle), library.nvmlDeviceGetName(handle)
        # A number depends on the order and on what else the process reaches, so it is used only where neither can
        # matter: some libraries read nothing else.
        visible = str(number) if count == 1 else uuid
        yield Gpu(uuid, visible, name, _memory_bytes(library, handle), (file,))
    for part in parts or ():
        uuid, name = library.nvmlDeviceGetUUID(part), library.nvmlDeviceGetName(part)
        instance, compute = library.nvmlDeviceGetGpuInstanceId(part), library.nvmlDeviceGetComputeInstanceId(part)
        way = _DRIVER / "capabilities" / f"gpu{minor}" / "mig" / f"gi{instance}"
        files = (file, *_capability_files(way / "access", way / f"ci{compute}" / "access"))
        yield Gpu(uuid, uuid, name, _memory_bytes(library, part), files)


def _memory_bytes(library: Any, handle: Any) -> int:
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total)
    except library.NVMLError:  # it shares the machine's
        return 0


def _parts(library: Any, handle: Any) -> list[Any] | None:
    """The MIG devices of a GPU; None if it is not divided."""
    try:
        current, _ = library.nvmlDeviceGetMigMode(handle)
    except library.NVMLError:  # it cannot be divided
        return None
    if not current:
        return None
    found = []
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append(library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except library.NVMLError:  # numbers may be missing
            continue
    return found


def _capability_files(*paths: Path) -> Iterator[str]:
    """The device files that grant what these files of the driver are about."""
    for path in paths:
        with suppress(OSError):
            yield from (f"{_CAPABILITIES}{minor}" for minor in _MINOR.findall(path.read_text()))


def _chosen(present: Mapping[int, Sequence[Gpu]], told: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order. As CUDA does, stop at the first name that is wrong."""
    every = [gpu for devices in present.values() for gpu in devices]
    if told is None:
        return every
    chosen: list[Gpu] = []
    for word in map(str.strip, told.split(",")):
        named = (
            present.get(int(word), ()) if word.isdecimal() else [g for g in every if word and g.uuid.startswith(word)]
        )
        if not named:
            break
        chosen += [gpu for gpu in named if gpu not in chosen]
    return chosen


def _cuda_version(library: Any) -> str:
    number = library.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // 1000}.{number % 1000 // 10}"


def _library_directory() -> str:
    """The directory from which the loader has taken the driver's library."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = (line.split(None, 5)[5].rstrip("\n") for line in maps if "/libnvidia-ml.so" in line)
        return os.path.dirname(next(paths, ""))
