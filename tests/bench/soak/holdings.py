"""What a server and its processes hold at one moment."""

from dataclasses import dataclass
from pathlib import Path

from tests.bench.procstat import memory, process_tree, threads

MIB = 1 << 20


@dataclass(frozen=True)
class Holdings:
    """What is held.

    Attributes:
        host_mib: memory of the host, its share of shared pages (PSS).
        models_mib: the same of all other processes together.
        descriptors: open in the host.
        host_threads: of the host.
        processes: below the host.
        mappings: of shared memory, in the host.
        shm_files: entries in /dev/shm.
    """

    host_mib: float
    models_mib: float
    descriptors: int
    host_threads: int
    processes: int
    mappings: int
    shm_files: int


def holdings(pid: int) -> Holdings:
    """Those of the server with this host process."""
    tree = process_tree(pid)
    own = Path(f"/proc/{pid}")
    return Holdings(
        host_mib=memory(pid).pss_bytes / MIB,
        models_mib=_memory_of_all(tree.stubs) / MIB,
        descriptors=sum(1 for _ in (own / "fd").iterdir()),
        host_threads=threads(pid),
        processes=len(tree.stubs),
        mappings=(own / "maps").read_text().count("memfd:"),
        shm_files=sum(1 for _ in Path("/dev/shm").iterdir()),
    )


def _memory_of_all(pids: tuple[int, ...]) -> int:
    total = 0
    for pid in pids:
        try:
            total += memory(pid).pss_bytes
        except (FileNotFoundError, ProcessLookupError, KeyError):
            continue  # it was killed meanwhile
    return total
