"""What a model's process has started and left behind, where it had a user of its own: all of that user's processes end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterator

log = logging.getLogger(__name__)

_KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"
_TIMEOUT_S = 20.0
_MOST_ROUNDS = 5


def end_processes_of(uid: int, gid: int) -> bool:
    """Kill every process of a user; True if none is left.

    The signal comes from a process that is that user: the kernel then sends it to all of them at once, so that nothing
    can fork away from it, and to nobody else.
    """
    for _ in range(_MOST_ROUNDS):
        if not any(_processes_of(uid)):
            return True
        try:
            _kill_all_as(uid, gid)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("processes of user %d cannot be ended: %s", uid, error)
            return False
    return not any(_processes_of(uid))


def users_with_processes(numbers: Collection[int]) -> set[int]:
    """Which of these users have any."""
    return {uid for users, _ in _running() for uid in users if uid in numbers}


def _kill_all_as(uid: int, gid: int) -> None:
    shell = ["/bin/sh", "-c", "kill -9 -1"]
    python = [sys.executable, "-I", "-S", "-c", _KILL_ALL]
    for command in (shell, python):
        try:
            # It does not count itself among those that it signals, so it ends with a status; what that is does not matter.
            subprocess.run(
                command,
                user=uid,
                group=gid,
                extra_groups=[],
                env={},
                cwd="/",
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except (FileNotFoundError, PermissionError):
            continue  # there is no such program, or that user cannot reach it
        return
    raise FileNotFoundError("there is neither a shell nor a Python that other users can run")


def _processes_of(uid: int) -> Iterator[int]:
    return (pid for users, pid in _running() if uid in users)


def _running() -> Iterator[tuple[set[int], int]]:
    """Users and process id of all that run; one that has ended and was not waited for can do no harm."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/status", "rb") as file:
                    lines = dict(line.split(b":", 1) for line in file)
            except OSError:
                continue  # gone meanwhile
            if lines[b"State"].split()[0] not in {b"Z", b"X"}:
                yield set(map(int, lines[b"Uid"].split())), int(entry.name)
