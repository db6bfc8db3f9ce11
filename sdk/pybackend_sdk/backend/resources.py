"""The memory of a model's process: how much freed memory it keeps, and what to do if a framework finds none.

glibc gives large freed blocks back to the kernel, and the next run fetches them again, page by page: the faults cost a
network with a few megabytes of intermediate results up to half of its time.
"""

import ctypes
import os
import resource
from typing import Any, Mapping

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


# Frameworks report that there is no memory in their own words, as errors of many types.
_WORDS = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "oom when allocating",
    "can't allocate memory",
    "cannot allocate memory",
)
_OF_GPUS = ("cuda", "hip error", "gpu")


def memory_advice(error: BaseException) -> str:
    """A sentence for an error that says that the process has no memory left; ``""`` for any other error.

    Args:
        error: raised by a framework.
    """
    text = str(error).lower()
    if any(word in text for word in _OF_GPUS):
        return ""
    if not isinstance(error, MemoryError) and not any(word in text for word in _WORDS):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        return (
            "The machine has no memory left for the model's process: send fewer rows at a time, or serve fewer models"
        )
    return (
        f"The model's process has used up its limit of {limit // _MIB} MB: send fewer rows at a time, or raise "
        "SANDBOX_MEMORY_MB in the model's parameters"
    )


_QUOTA = "/sys/fs/cgroup/cpu.max"


def cores() -> int:
    """CPU cores that this process may use: those it may run on, and no more than a container's quota, at least 1."""
    usable = len(os.sched_getaffinity(0))
    try:
        with open(_QUOTA, encoding="ascii") as file:
            quota_us, period_us = file.read().split()[:2]
        if quota_us != "max":
            usable = min(usable, -(-int(quota_us) // int(period_us)))
    except (OSError, ValueError):  # no such file outside version 2 of control groups
        pass
    return max(1, usable)


def instance_count(config: Mapping[str, Any]) -> int:
    """Instances of a model that compute on the CPU's cores, at least 1."""
    groups = config.get("instance_group", ())
    return max(1, sum(group["count"] or 1 for group in groups if group["kind"] != "KIND_GPU"))


def threads_per_instance(config: Mapping[str, Any]) -> int:
    """Threads for one instance: all instances together have no more than there are cores, and each has at least 1.

    Args:
        config: the model's configuration, as ``initialize`` gets it.
    """
    return max(1, cores() // instance_count(config))
