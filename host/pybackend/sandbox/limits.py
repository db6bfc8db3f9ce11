"""Resource limits of a model's processes, by the kernel's names."""

from __future__ import annotations

import os
from pathlib import Path

from pybackend.sandbox.options import SandboxOptions
from pybackend_wire.confinement import STRICT

MIB = 1024 * 1024

PROCESSES, SHARED_PROCESSES, STRICT_PROCESSES = 4096, 32_768, 1024
"""Processes and threads per user. The kernel counts all of a user's, and the server's user already has others."""

DESCRIPTORS, STRICT_DESCRIPTORS = 65_536, 4096

STRICT_FILE_BYTES = 4096 * MIB

_ASKED_BY = {"DATA": "SANDBOX_MEMORY_MB", "NPROC": "SANDBOX_PROCESSES"}

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def resource_limits(level: str, options: SandboxOptions, *, own_user: bool) -> dict[str, int]:
    """Return the limits of each process. Descriptors, file sizes and memory count per process, processes per user."""
    strict = level == STRICT
    memory_bytes = machine_memory_bytes() // (2 if strict else 1)
    processes = STRICT_PROCESSES if strict else PROCESSES
    limits = {
        "CORE": 0,
        "MSGQUEUE": 0,
        "NOFILE": STRICT_DESCRIPTORS if strict else DESCRIPTORS,
        "NPROC": options.processes or (processes if own_user else SHARED_PROCESSES),
        "DATA": memory_bytes if options.memory_mb is None else options.memory_mb * MIB,
    }
    if strict:
        limits["FSIZE"] = STRICT_FILE_BYTES
    return limits


def raised_limit(level: str, options: SandboxOptions, *, own_user: bool) -> str:
    """Return the parameter that asks for a higher limit than the level's, ``""`` for none."""
    usual = resource_limits(level, SandboxOptions(), own_user=own_user)
    asked = resource_limits(level, options, own_user=own_user)
    return next((name for limit, name in _ASKED_BY.items() if asked[limit] > usual[limit]), "")


def machine_memory_bytes() -> int:
    """Return the machine's memory, or the container's limit if that is lower."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        try:
            return min(physical, int(path.read_text()))
        except (OSError, ValueError):
            continue  # there is no such file, or it says "max"
    return physical
