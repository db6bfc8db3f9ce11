"""The descriptors that this process holds, for tests of leaks.

A count would not do: objects of earlier tests may close theirs at any time, and that hides a leak or looks like one.
"""

from __future__ import annotations

import os
from contextlib import suppress


def open_descriptors() -> set[tuple[int, int, int]]:
    """Number, device and inode of each open descriptor: what ``open_descriptors() - before`` names was opened since."""
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own, or one that another thread has closed
            status = os.fstat(number)
            found.add((number, status.st_dev, status.st_ino))
    return found
