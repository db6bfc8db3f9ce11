"""Kills leftover processes of a model that had a separate user: all of that user's processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator

log = logging.getLogger(__name__)

_KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"
_TIMEOUT_S = 20.0
_MOST_ROUNDS = 5


def end_processes_of(uid: int, gid: int) -> bool:
    """Kill every process of a user; True if none remains.

    A process of that user sends the signal: the kernel then delivers it to all of the user's processes at once, so that
    none can escape by forking, and to no others.
    """
    for _ in range(_MOST_ROUNDS):
        if not any(_processes_of(uid)):
            return True
        try:
            _kill_all_as(uid, gid)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("cannot kill the processes of user %d: %s", uid, error)
            return False
    return not any(_processes_of(uid))


def users_with_processes(numbers: Collection[int]) -> set[int]:
    """Return those of these ids that running processes have as a user or group."""
    return {uid for users, _ in _running((b"Uid", b"Gid", b"Groups")) for uid in users if uid in numbers}


def _kill_all_as(uid: int, gid: int) -> None:
    shell = ["/bin/sh", "-c", "kill -9 -1"]
    python = [sys.executable, "-I", "-S", "-c", _KILL_ALL]
    for command in (shell, python):
        try:
            # The sender does not signal itself, so it exits with a status, which does not matter.
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
            continue  # there is no such program, or that user cannot run it
        return
    raise FileNotFoundError("there is neither a shell nor a Python that other users can run")


def _processes_of(uid: int) -> Iterator[int]:
    return (pid for users, pid in _running() if uid in users)


def _running(kinds: Iterable[bytes] = (b"Uid",)) -> Iterator[tuple[set[int], int]]:
    """Yield ids (of users, or other ``kinds``) and process id of running processes; zombies are left out."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/status", "rb") as file:
                    lines = dict(line.split(b":", 1) for line in file)
            except OSError:
                continue  # it is gone already
            if lines[b"State"].split()[0] not in {b"Z", b"X"}:
                yield {int(number) for name in kinds for number in lines[name].split()}, int(entry.name)
