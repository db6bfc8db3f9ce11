"""``--host-policy``: which cores the processes of models may use."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_FORMAT = "--host-policy option format is '<policy name>,<setting>=<value>'."

_NODE = Path("/sys/devices/system/node")

HostPolicy = tuple[str, str, frozenset[int]]
"""Policy name, setting, and the resulting cores."""


def host_policy(text: str) -> HostPolicy:
    """Read ``<name>,cpu-cores=<first>-<last>`` or ``<name>,numa-node=<number>``.

    Raises ArgumentTypeError if the form is wrong, or this process may not use one of the cores.
    """
    name, comma, rest = text.partition(",")
    setting, equals, value = rest.partition("=")
    if not name or not comma or not setting or not equals or not value:
        raise argparse.ArgumentTypeError(f"{_FORMAT} Got {text}. For example: cpu,cpu-cores=0-3")
    usable = os.sched_getaffinity(0)
    if setting == "cpu-cores":
        cores = wanted = _cores(value, text)
    elif setting == "numa-node":
        wanted = _cores_of_node(value, text)
        cores = wanted & usable  # a container may own only part of a node
    else:
        raise argparse.ArgumentTypeError(f"Unsupported host policy setting '{setting}'. Write cpu-cores or numa-node")
    if not cores or not cores <= usable:
        raise argparse.ArgumentTypeError(
            f"{text}: this server may use {len(usable)} cores, {_ranges(usable)}, but not {_ranges(wanted - usable)}"
        )
    return name, setting, cores


def _cores(value: str, text: str) -> frozenset[int]:
    """Parse ``0-3``, ``5``, or a comma-separated list of these."""
    cores: set[int] = set()
    for piece in value.split(","):
        first, _, last = piece.partition("-")
        last = last if "-" in piece else first
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 7 for bound in (first, last)) or (
            int(last) < int(first)
        ):
            raise argparse.ArgumentTypeError(f"'{value}' is not a range of cores such as 0-3. Got {text}")
        cores.update(range(int(first), int(last) + 1))
    return frozenset(cores)


def _cores_of_node(value: str, text: str) -> frozenset[int]:
    path = _NODE / f"node{value}" / "cpulist"
    try:
        listed = path.read_text().strip() if value.isdecimal() else ""
    except OSError:
        listed = ""
    if not listed:
        raise argparse.ArgumentTypeError(f"this machine has no NUMA node '{value}' with cores. Got {text}")
    return _cores(listed, text)


def _ranges(cores: Iterable[int]) -> str:
    """``0-3,8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def host_policies(given: Iterable[HostPolicy]) -> Mapping[str, frozenset[int]]:
    """The cores of each policy. If both settings are given, ``cpu-cores`` wins because it is more precise."""
    return {name: cores for name, _, cores in sorted(given, key=lambda policy: policy[1] == "cpu-cores")}
