"""What a host must not gather: descriptors, mappings, processes, and complaints of its event loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gates import wait_until
from tests.support.server import ServerProcess, free_of_processes, serving

IDLE_S = 40
"""Within it a host that has nothing to do gives warm memory back."""

_COMPLAINTS = re.compile(
    r"Exception in callback|Task exception was never retrieved|Task was destroyed|Exception ignored in|internal error"
)


def descriptors(server: ServerProcess) -> Counter[str]:
    """What the host's descriptors are open on; numbers are left out, so that equals are counted together."""
    kinds: Counter[str] = Counter()
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            kinds[entry.readlink().name.partition(":")[0]] += 1
        except FileNotFoundError:
            continue
    return kinds


def mappings(server: ServerProcess) -> int:
    """How much shared memory the host has mapped."""
    return Path(f"/proc/{server.process.pid}/maps").read_text().count("memfd:")


def figure(server: ServerProcess, name: str) -> int:
    """A number of /proc/<host>/status."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


@contextmanager
def serving_without_leaks(*repositories: Path, flags: tuple[str, ...] = ()) -> Iterator[ServerProcess]:
    """A server that holds no more at the end of a ``with`` block, once it is idle, than at its beginning."""
    with serving(*repositories, flags=flags) as server:
        before = descriptors(server), mappings(server), len(server.stub_pids())
        yield server
        for what, count, least in (
            ("descriptors", lambda: descriptors(server).total(), before[0].total()),
            ("mappings", lambda: mappings(server), before[1]),
            ("processes", lambda: len(server.stub_pids()), before[2]),
        ):
            wait_until(
                lambda count=count, least=least: count() <= least,
                f"{what} grew from {before} to {descriptors(server), mappings(server), server.stub_pids()}",
                IDLE_S,
            )
        pids = server.stub_pids()
        assert server.stop() == 0
        assert free_of_processes(pids), "processes outlived their host"
        complaint = _COMPLAINTS.search(server.output)
        assert complaint is None, server.output[complaint.start() :][:2000]
