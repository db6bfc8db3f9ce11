"""Description of one instance, and of the places where its process is, for operators."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.stacks import Stack


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
