"""Tests of the models. They need no server: run `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pybackend_testing import ModelHarness

HERE = Path(__file__).parent
MODEL, CALLED = HERE / "my_model", HERE / "my_model_scale"


def test_the_other_model_is_called_until_the_answer_is_large() -> None:
    with ModelHarness(MODEL, models={CALLED.name: CALLED}) as harness:
        result = harness.infer(X=np.array([2], np.float32))
    assert result["Y"].tolist() == [200]


def test_an_error_of_the_other_model_is_passed_on() -> None:
    def fails(X: np.ndarray) -> np.ndarray:
        raise ValueError("out of service")

    with ModelHarness(MODEL, models={CALLED.name: fails}) as harness:
        result = harness.infer(X=np.array([2], np.float32))
    assert result.error is not None
    assert "out of service" in result.error.message()
