"""Tests of the model. They need no server: run `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pybackend_testing import ModelHarness

MODEL = Path(__file__).parent / "my_model"


def add(
    harness: ModelHarness,
    sequence: int,
    value: float,
    *,
    start: bool = False,
    end: bool = False,
) -> float:
    """Send a request of a sequence; a server adds the control tensors itself."""
    result = harness.infer(
        VALUE=np.array([[value]], np.float32),
        START=np.array([[start]], np.int32),
        END=np.array([[end]], np.int32),
        CORRID=np.array([[sequence]], np.uint64),
        correlation_id=sequence,
    )
    return result["TOTAL"].item()


def test_each_sequence_has_its_own_total() -> None:
    with ModelHarness(MODEL) as harness:
        assert add(harness, 1, 3, start=True) == 3
        assert add(harness, 2, 10, start=True) == 10
        assert add(harness, 1, 4) == 7
        assert add(harness, 2, 20, end=True) == 30
        assert add(harness, 1, 5, end=True) == 12
        assert add(harness, 1, 1, start=True) == 1
