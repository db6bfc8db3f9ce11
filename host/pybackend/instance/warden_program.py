"""What a warden runs: ``<python> warden_program.py <descriptor> <lowest mark> <highest mark>``.

Imports next to nothing: it lies in memory for as long as its server runs.
"""

import os
import resource
import sys
import time

NAME = "pb-warden"
"""What ``ps`` and ``/proc/<pid>/comm`` call it."""

_MARK = 10
"""``RLIMIT_LOCKS``; :mod:`pybackend_wire.zygote` says why."""

_LAST_S = 5.0
"""How long it tries; what cannot be killed within that waits for the kernel."""


def main(reading: int, lowest: int, highest: int) -> None:
    """Wait for the end of the host, then kill whatever bears one of its marks."""
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(NAME)
    os.read(reading, 1)
    deadline_s = time.monotonic() + _LAST_S
    while _kill_marked(lowest, highest) and time.monotonic() < deadline_s:
        time.sleep(0.002)


def _kill_marked(lowest: int, highest: int) -> int:
    """Returns how many there were."""
    found = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if lowest <= resource.prlimit(int(name), _MARK)[1] <= highest and not _has_ended(name):
                found += 1
                os.kill(int(name), 9)
        except OSError:  # gone, or somebody else's
            continue
    return found


def _has_ended(pid: str) -> bool:
    """It only waits for its parent to see that."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] == b"Z"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
