"""The sandbox parameters of models."""

from __future__ import annotations

from dataclasses import dataclass

from pybackend_wire.confinement import LEVELS, STRICT

HOST_UID = -1
"""Value of :attr:`SandboxOptions.uid` for the server's user."""


@dataclass(frozen=True)
class SandboxOptions:
    """One model's sandbox parameters; None if not set.

    Attributes:
        level: SANDBOX.
        network: SANDBOX_NETWORK.
        unix_sockets: SANDBOX_UNIX_SOCKETS.
        subprocesses: SANDBOX_SUBPROCESSES.
        read: SANDBOX_READ, more paths to read.
        write: SANDBOX_WRITE, more paths to write.
        memory_mb: SANDBOX_MEMORY_MB, memory limit of each of its processes.
        processes: SANDBOX_PROCESSES, limit for processes and threads of its user.
        uid: SANDBOX_UID, the user to run as.
        model_control: SANDBOX_MODEL_CONTROL, the models that it may load and unload.
    """

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
    """The result of a level and options.

    Attributes:
        network: whether the internet protocols may be used.
        unix_sockets: whether socket files may be used.
        subprocesses: whether processes may be started.
    """

    network: bool
    unix_sockets: bool
    subprocesses: bool


def permissions(level: str, options: SandboxOptions) -> Permissions:
    """Return the permissions of a model with these options at this level."""
    usual = level != STRICT
    network = usual if options.network is None else options.network
    return Permissions(
        network=network,
        unix_sockets=(network or usual) if options.unix_sockets is None else options.unix_sockets,
        subprocesses=usual if options.subprocesses is None else options.subprocesses,
    )


def rank(level: str) -> int:
    """Return a level's strength for comparisons."""
    return LEVELS.index(level)
