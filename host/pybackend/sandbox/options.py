"""What models ask of the sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from pybackend_wire.confinement import LEVELS

HOST_UID = -1
"""As :attr:`SandboxOptions.uid`: the user that the server runs as."""


@dataclass(frozen=True)
class SandboxOptions:
    """What one model's parameters say; None where they are silent.

    Attributes:
        level: SANDBOX.
        network: SANDBOX_NETWORK.
        unix_sockets: SANDBOX_UNIX_SOCKETS.
        subprocesses: SANDBOX_SUBPROCESSES.
        read: SANDBOX_READ, more paths to read.
        write: SANDBOX_WRITE, more paths to write.
        memory_mb: SANDBOX_MEMORY_MB, most memory of each of its processes.
        processes: SANDBOX_PROCESSES, most processes and threads of its user.
        uid: SANDBOX_UID, the user to run as.
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

    @property
    def widening(self) -> str:
        """The first parameter that lets the model have more than its level does, bounds aside; ``""`` for none."""
        asked = {
            "SANDBOX_NETWORK": self.network,
            "SANDBOX_UNIX_SOCKETS": self.unix_sockets,
            "SANDBOX_SUBPROCESSES": self.subprocesses,
            "SANDBOX_READ": self.read,
            "SANDBOX_WRITE": self.write,
            "SANDBOX_UID": self.uid is not None,
        }
        return next((name for name, value in asked.items() if value), "")


def rank(level: str) -> int:
    """Levels in order of their strength."""
    return LEVELS.index(level)
