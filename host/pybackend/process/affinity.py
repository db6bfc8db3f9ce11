"""The cores that a stub may use."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def pin(pid: int, cores: Collection[int]) -> None:
    """Keep a process on these cores: its present threads, and all that they will start.

    A process started ahead of time has imported numpy, and may have its threads, before its cores are chosen. A process
    that has ended meanwhile is not an error: the code that waits for it will notice.
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
