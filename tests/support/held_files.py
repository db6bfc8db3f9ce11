"""What a process has open or mapped."""

import os
from contextlib import suppress
from pathlib import Path


def open_links(pid: int) -> list[str]:
    """The targets of its descriptors: paths, or names such as ``socket:[123]``."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            links.append(os.readlink(entry))
    return links


def shared_memory(pid: int) -> set[str]:
    """Names of the shared memory that it has open or mapped."""
    mapped = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {name for name in (*open_links(pid), *mapped) if name.startswith("/dev/shm/")}
