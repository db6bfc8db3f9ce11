"""Public facts about a model version, and about one of its instances."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.stacks import Stack
from pybackend.modelconfig.signature import ModelSignature


@dataclass(frozen=True)
class ModelDescription:
    """The current state of one version.

    Attributes:
        versions: decimal, ascending: all serving versions, or only the version requested by number.
        platform: the configuration's ``platform``, or the name of its backend.
        signature: its inputs and outputs.
        document: its complete configuration.
        confinement: the confinement of its processes, None if they are not confined.
        environment: the Python environment that it brings, None if it runs on the server's Python.
    """

    versions: Sequence[str]
    platform: str
    signature: ModelSignature
    document: Mapping[str, Any]
    confinement: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None


def instance_document(version: str, instance: ModelInstance, stacks: Sequence[Stack]) -> dict[str, Any]:
    """An instance as plain values: its process, what it executes, and its stacks, that of ``execute`` first."""
    executor = instance.executor
    oldest = executor.oldest
    return {
        "instance": instance.name,
        "version": version,
        "state": instance.state.value,
        "pid": instance.pid,
        "running": len(executor.running),
        "requests": 0 if oldest is None else len(oldest.pending),
        "oldest_s": executor.busy_ns(time.monotonic_ns()) / 1e9,
        "stacks": [asdict(stack) for stack in sorted(stacks, key=lambda stack: not stack.executes)],
    }
