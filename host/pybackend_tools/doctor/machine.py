"""Checks of the machine, the container and this installation that start no process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
import shutil
import sys
from pathlib import Path

from pybackend import __version__
from pybackend.environment.cache import EnvironmentCache
from pybackend.environment.python_build import COST, OPTIMISED_BUILDS, is_optimised
from pybackend.errors import PybackendError
from pybackend.gpus import Gpus, needed_mode
from pybackend.ipc.segment import Segment
from pybackend.settings import usual_front_ends
from pybackend_tools.doctor.finding import Finding, fail, ok, warn
from pybackend_tools.pack.needed import install_missing, missing_packages
from pybackend_wire.installation import install_command

_NEEDED = (
    "numpy",
    "msgpack",
    "msgspec",
    "posix_ipc",
    "fastapi",
    "fastapi_offline",
    "uvicorn",
    "uvloop",
    "httptools",
    "python_multipart",
    "rapidjson",
)

_FEW_DESCRIPTORS, _TOO_FEW_DESCRIPTORS = 4096, 256
_DESCRIPTORS_OF_PROCESS = 5
"""Each process of a model takes that many, and each connection takes one."""

_FEW_PROCESSES = 512
_LITTLE_ROOM_BYTES = 2 * 1024**3
_SHARED_BYTES = 64 * 1024 * 1024


def python() -> Finding:
    """The interpreter and this installation."""
    build = "" if is_optimised() else " built without optimisations"
    interpreter = f"{platform.python_implementation()} {platform.python_version()}{build}"
    found = f"pybackend {__version__} on {interpreter}, {sys.executable}"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return fail(
            "python",
            f"{found}; without {', '.join(missing)}",
            f"reinstall: {install_command()}",
        )
    if build:
        return warn("python", found, f"{COST}; {OPTIMISED_BUILDS}")
    return ok("python", found)


def kernel() -> Finding:
    """Kernel features that supervision needs."""
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform != "linux":
        return fail("kernel", found, "models can only be served on Linux")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return fail("kernel", f"{found}: no process descriptors ({error})", "Linux 5.3 or newer is needed")
    return ok("kernel", found)


def descriptors(process_count: int = 0) -> Finding:
    """How many files and connections this user may have open at once.

    ``process_count``: number of processes that the server's models will have.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few, too_few = (
        least + process_count * _DESCRIPTORS_OF_PROCESS for least in (_FEW_DESCRIPTORS, _TOO_FEW_DESCRIPTORS)
    )
    found = f"{_number(soft)}, at most {_number(hard)}"  # a server raises the soft limit to the hard one
    if process_count:
        processes = "1 process of a model takes" if process_count == 1 else f"{process_count} processes of models take"
        found += f"; {processes} {process_count * _DESCRIPTORS_OF_PROCESS}"
    advice = "raise it: `ulimit -Hn 65536`, LimitNOFILE= of systemd, --ulimit nofile= of a container"
    if hard != resource.RLIM_INFINITY and hard < too_few:
        return fail("open files", found, advice)
    if hard != resource.RLIM_INFINITY and hard < few:
        return warn("open files", found, advice)
    return ok("open files", found)


def processes() -> Finding:
    """How many processes and threads this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    found = f"{_number(soft)}, at most {_number(hard)}"
    advice = "raise it: `ulimit -u 4096`, LimitNPROC= of systemd, --pids-limit of a container"
    most = _most_tasks()
    if most is not None and most < _FEW_PROCESSES:
        return warn("processes", f"{most} in this container or service", advice)
    if os.geteuid() and soft != resource.RLIM_INFINITY and soft < _FEW_PROCESSES:
        return warn("processes", found, advice)
    return ok("processes", found)


def shared_memory() -> Finding:
    """Memory for tensors."""
    place = "/dev/shm"  # noqa: S108  not a file in it
    free = _room(place)
    size = f"there is no {place}" if free is None else f"{place} has {_size(free)} free"
    try:
        segment = Segment(_SHARED_BYTES)
    except PybackendError as error:
        return fail(
            "shared memory",
            f"{error}; {size}",
            "give the container more: --shm-size=1g, or an emptyDir of medium Memory",
        )
    try:
        if segment.sealed:
            return ok("shared memory", f"sealed memfd; {size}, which tensors do not need")
        advice = "let the kernel or the container's seccomp profile allow memfd_create"
        return warn(
            "shared memory", f"no memfd: tensors take room in /dev/shm and are copied once more; {size}", advice
        )
    finally:
        segment.close()


def front_ends(count: int) -> Finding:
    """Processes that accept connections."""
    layer, cores = "front ends", len(os.sched_getaffinity(0))
    usual = usual_front_ends(cores)
    if not count:
        more = f"; --front-ends=auto would start {usual}" if usual else ""
        return ok(layer, f"none: the server's process accepts connections; cores: {cores}{more}")
    found = f"{count}; cores: {cores}"
    if count >= cores:
        return warn(layer, f"{found}: they take cores from each other and from models", "leave it to --front-ends=auto")
    return ok(layer, found)


def environment_cache(directory: Path) -> Finding:
    """Where environments are unpacked."""
    layer, place = "environment cache", directory
    while not place.exists() and place != place.parent:
        place = place.parent  # the server creates missing directories
    advice = "name another directory with --environment-cache-directory"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return fail(layer, f"{directory}: {place} cannot be written", advice)
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        return fail(layer, f"{directory}: {place} is mounted noexec, and programs cannot run from there", advice)
    entries = EnvironmentCache(directory).entries()
    taken, free = sum(entry.mark.total_bytes for entry in entries if entry.mark is not None), _room(str(place)) or 0
    found = f"{directory}: {len(entries)} environments, {_size(taken)}, {_size(free)} free"
    if free < _LITTLE_ROOM_BYTES:
        return warn(
            layer, found, "make room: `pybackend env prune`; an environment with torch takes a gigabyte and more"
        )
    return ok(layer, found)


def packing() -> Finding:
    """Whether environments can be packed on this machine. Servers do not need this."""
    missing = missing_packages()
    if missing:
        return ok("packing", f"{', '.join(missing)} not installed; to pack environments here: {install_missing()}")
    return ok("packing", "installed")


def gpus(found: Gpus) -> Finding:
    """GPUs that models may use, and the driver."""
    if found.is_fault:
        return warn("gpu", "none", found.reason)
    if not found.found:
        return ok("gpu", f"none. {found.reason}")
    text = f"{found.summary} Driver {found.driver}, for CUDA {found.cuda} and older, in {found.libraries}"
    files = {path: None for number in range(len(found.found)) for path in found.access("GPU", number).files}
    missing = [path for path in files if not os.path.exists(path)]
    if missing:
        return warn("gpu", f"{text}; {', '.join(missing)} is missing", "make it: nvidia-modprobe -u -c=0, as root")
    closed = [path for path in files if needed_mode(path) & ~os.stat(path).st_mode]
    if closed and not os.geteuid():
        advice = (
            "models run as other users: set the driver's option NVreg_DeviceFileMode=0666, or give each model "
            'parameters SANDBOX_UID: "host"'
        )
        return warn("gpu", f"{text}; not everyone may open {', '.join(closed)}", advice)
    return ok("gpu", text)


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024**3:.1f} GB" if nbytes >= 1024**3 else f"{nbytes / 1024**2:.0f} MB"


def _room(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _most_tasks() -> int | None:
    """The process limit of this control group, None if there is none."""
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        try:
            return int(Path(path).read_text())
        except (OSError, ValueError):  # missing, or "max"
            continue
    return None
