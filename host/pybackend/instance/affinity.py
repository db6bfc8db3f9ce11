"""On which cores a stub may run."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def pin(pid: int, cores: Collection[int]) -> None:
    """Keep a process on these cores: the threads that it has, and with them all that they will start.

    A process that was started ahead of time has imported numpy, and may have its threads, before anybody knows where it
    is to run. One that has ended meanwhile is not an error: whoever waits for it finds out.
    """
    pinned: set[int] = set()
    while True:
        try:
            threads = {int(name.name) for name in Path(f"/proc/{pid}/task").iterdir()}
        except OSError:
            return
        if threads <= pinned:
            return
        for thread in threads - pinned:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        pinned |= threads
