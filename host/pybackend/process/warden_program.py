"""The warden's program: ``<python> warden_program.py <descriptor> <lowest mark> <highest mark>``.

It imports very little, because it stays in memory as long as its server runs.
"""

import os
import resource
import sys
import time

NAME = "pb-warden"
"""Its name in ``ps`` and ``/proc/<pid>/comm``."""

_MARK = 10
"""``RLIMIT_LOCKS``; :mod:`pybackend_wire.zygote` explains it."""

_LAST_S = 5.0
"""How long it tries; processes that it cannot kill in that time are blocked in the kernel."""


def main(reading: int, lowest: int, highest: int) -> None:
    """Wait for the end of the host, then kill every process with one of its marks."""
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(NAME)
    os.read(reading, 1)
    deadline_s = time.monotonic() + _LAST_S
    while _kill_marked(lowest, highest) and time.monotonic() < deadline_s:
        time.sleep(0.002)


def _kill_marked(lowest: int, highest: int) -> int:
    """Kill marked processes; returns how many there were."""
    found = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if lowest <= _mark_of(name) <= highest and not _has_ended(name):
                found += 1
                os.kill(int(name), 9)
        except OSError:  # gone, or not ours to signal
            continue
    return found


def _mark_of(pid: str) -> int:
    try:
        return resource.prlimit(int(pid), _MARK)[1]
    except PermissionError:  # another user's process, and this one lacks the privilege, as in containers
        with open(f"/proc/{pid}/limits", "rb") as limits:
            fields = next(line.split() for line in limits if line.startswith(b"Max file locks"))
        return int(fields[4]) if fields[4].isdigit() else -1


def _has_ended(pid: str) -> bool:
    """Whether a process has ended and only waits for its parent to reap it."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"Z"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
