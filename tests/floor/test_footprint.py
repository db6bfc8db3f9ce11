"""What one more model costs: the memory of an idle stub that has imported numpy."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np

from pybackend.inference.request import InferenceRequest
from tests.support.engine import engine_on, input_tensor
from tests.support.repositories import IDENTITY, identity_config, write_model

MOST_PSS_KIB = 20 * 1024
STUBS = 4


def pss_kib(pid: int) -> int:
    """Memory of a process; what it shares counts in proportion."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_memory_and_threads_of_idle_stubs(tmp_path):
    group = f"instance_group [ {{ count: {STUBS} kind: KIND_CPU }} ]"
    write_model(tmp_path, "identity", IDENTITY, identity_config(extra=group))

    async def measure() -> list[tuple[int, int]]:
        async with engine_on(tmp_path) as engine:
            model = engine.repository.catalogue.find("identity")
            for _ in range(2 * STUBS):  # each has done what a stub does, once
                inputs = [input_tensor("IN", np.zeros(100, np.float32))]
                response = await engine.open(model.name, model.version).infer(
                    InferenceRequest("identity", inputs=inputs)
                )
                assert response.error is None
                response.release()
            return [(pss_kib(instance.pid), threads(instance.pid)) for instance in model.instances]

    measured = asyncio.run(measure())
    assert len(measured) == STUBS
    assert max(pss for pss, _ in measured) <= MOST_PSS_KIB, measured
    assert max(count for _, count in measured) <= os.cpu_count(), "numpy's pool apart, an idle stub has one thread"
