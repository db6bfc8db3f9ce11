"""How much memory this process may use, which default limits are fractions of, and how much another one has."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_memory_bytes(cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """The machine's memory, or the lowest limit of this process's control groups, if that is lower."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(cgroups, membership)])


def _limits(cgroups: Path, membership: Path) -> Iterator[int]:
    """All limits found. In a container the path may not exist; then the process's own group is at the top."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for directory in (group, *group.parents):
            yield from _limit(directory / name)
            if directory == top:
                break


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdigit():  # "max" means no limit
        yield int(text)


_OF_ITS_OWN = ("RssAnon:", "VmSwap:")


def own_memory_bytes(pid: int) -> int:
    """The memory that a process has to itself, in pages or swapped out: no files, and nothing that it shares with the server.

    0 if that cannot be read, e.g. because the process is gone.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_OF_ITS_OWN))
