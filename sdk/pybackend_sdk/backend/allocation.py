"""How the C library keeps memory that a computation has freed.

glibc gives large freed blocks back to the kernel, and the next run fetches them again, page by page: the faults cost a network
with a few megabytes of intermediate results up to half of its time.
"""

import ctypes

_MIB = 1024 * 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of mallopt in malloc.h."""

_LARGEST_KEPT_BYTES = 32 * _MIB
"""Larger blocks come from the kernel each time: glibc takes no larger threshold."""

MOST_KEPT_BYTES = 64 * _MIB
"""Freed memory beyond this goes back to the kernel."""


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory in this process for the next run. Nothing happens with other C libraries."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, MOST_KEPT_BYTES)
