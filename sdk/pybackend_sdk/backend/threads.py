"""How many threads an instance may use, so that the instances of a model do not fight for the cores."""

import os
from typing import Any, Mapping

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
