"""What a host must not gather: descriptors, mappings, processes, and complaints of its event loop."""

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


def _holdings(server: ServerProcess) -> tuple[Counter[str], int, list[int]]:
    return descriptors(server), mappings(server), server.stub_pids()


def _totals(holdings: tuple[Counter[str], int, list[int]]) -> tuple[int, int, int]:
    return holdings[0].total(), holdings[1], len(holdings[2])


@contextmanager
def serving_without_leaks(*repositories: Path, flags: tuple[str, ...] = ()) -> Iterator[ServerProcess]:
    """A server that holds no more at the end of a ``with`` block, once it is idle, than at its beginning."""
    with serving(*repositories, flags=flags) as server:
        # It comes a second after the start, and takes a pipe.
        wait_until(server.has_warden, "nobody would look after orphans")
        before = _holdings(server)
        yield server
        wait_until(
            lambda: all(now <= then for now, then in zip(_totals(_holdings(server)), _totals(before), strict=True)),
            lambda: f"descriptors, mappings, processes grew from {before} to {_holdings(server)}",
            IDLE_S,
        )
        pids = server.stub_pids()
        assert server.stop() == 0
        assert free_of_processes(pids), "processes outlived their host"
        complaint = _COMPLAINTS.search(server.output)
        assert complaint is None, server.output[complaint.start() :][:2000]
