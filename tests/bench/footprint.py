"""Footprint: memory and threads of the host and of its stubs, with one model and with many."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, procstat, progress, repositories, servers
from tests.bench.plan import MB, Plan


@dataclass(frozen=True)
class FootprintSample:
    """A server that has answered one request per model and is idle.

    Attributes:
        models: how many models it serves, one instance each.
        host: memory of its process.
        host_threads: threads of its process.
        stubs: how many other processes it has.
        stub: memory of the middle one of these.
        stub_threads: threads of the middle one of these.
        total_pss_bytes: proportional memory of all its processes.
        ready_s: how long it took to start.
    """

    server: str
    models: int
    host: procstat.Memory
    host_threads: int
    stubs: int
    stub: procstat.Memory
    stub_threads: int
    total_pss_bytes: int
    ready_s: float


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[FootprintSample]:
    """Start every server on repositories of several sizes, use each model once, and read /proc."""
    samples: list[FootprintSample] = []
    for models in plan.footprint_models:
        repository = scratch / f"models-{models}"
        names = repositories.write_copies(repository, models)
        for launcher in launchers:
            with launcher.start(repository) as server:
                for name in names:
                    bodies.check(server.port, bodies.add_sub_binary(name))
                samples.append(_read(server, models))
    return samples


def _read(server: servers.RunningServer, models: int) -> FootprintSample:
    tree = server.tree()
    host = procstat.memory(server.pid)
    stubs = [procstat.memory(pid) for pid in tree.stubs]
    stub = procstat.Memory(
        int(statistics.median(memory.rss_bytes for memory in stubs)),
        int(statistics.median(memory.pss_bytes for memory in stubs)),
    )
    progress.show(
        f"{server.name} with {models} models: host {host.pss_bytes / MB:.1f} MB PSS, a stub {stub.pss_bytes / MB:.1f} MB"
    )
    return FootprintSample(
        server.name,
        models,
        host,
        procstat.threads(server.pid),
        len(stubs),
        stub,
        int(statistics.median(procstat.threads(pid) for pid in tree.stubs)),
        host.pss_bytes + sum(memory.pss_bytes for memory in stubs),
        server.ready_s,
    )
