"""The sandbox parameters of models, and what follows from them: permissions and resource limits."""

import os
from dataclasses import dataclass
from pathlib import Path

from pybackend_wire.confinement import LEVELS, STRICT

HOST_UID = -1
"""Value of :attr:`SandboxOptions.uid` for the server's user."""


@dataclass(frozen=True)
class SandboxOptions:
    """One model's sandbox parameters; None if not set."""

    level: str | None = None
    network: bool | None = None
    unix_sockets: bool | None = None
    subprocesses: bool | None = None
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    memory_mb: int | None = None
    processes: int | None = None
    uid: int | None = None
    model_control: tuple[str, ...] | None = None

    def widening(self, level: str) -> str:
        """Return the first parameter that gives the model more than its level does, limits aside; ``""`` for none."""
        asked = {
            "SANDBOX_NETWORK": self.network,
            "SANDBOX_UNIX_SOCKETS": self.unix_sockets,
            "SANDBOX_SUBPROCESSES": self.subprocesses,
            "SANDBOX_READ": self.read,
            "SANDBOX_WRITE": self.write,
            "SANDBOX_UID": self.uid is not None,
            "SANDBOX_MODEL_CONTROL": level == STRICT and self.model_control,
        }
        return next((name for name, value in asked.items() if value), "")


@dataclass(frozen=True)
class Permissions:
    """The result of a level and options."""

    network: bool
    unix_sockets: bool
    subprocesses: bool


def permissions(level: str, options: SandboxOptions, *, unix_sockets: bool = True) -> Permissions:
    """Return the permissions of a model with these options at this level.

    Without ``unix_sockets``, it must ask for those.
    """
    usual = level != STRICT
    network = usual if options.network is None else options.network
    return Permissions(
        network=network,
        unix_sockets=unix_sockets and (network or usual) if options.unix_sockets is None else options.unix_sockets,
        subprocesses=usual if options.subprocesses is None else options.subprocesses,
    )


def rank(level: str) -> int:
    """Return a level's strength for comparisons."""
    return LEVELS.index(level)


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
