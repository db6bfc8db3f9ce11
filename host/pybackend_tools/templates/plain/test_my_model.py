"""Tests of the model. They need no server: run `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pybackend_testing import ModelHarness

MODEL = Path(__file__).parent / "my_model"


def test_values_are_multiplied() -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(X=np.array([[1, 2, 3]], np.float32))
    np.testing.assert_array_equal(result["Y"], [[2, 4, 6]])


def test_the_factor_is_a_parameter() -> None:
    with ModelHarness(MODEL, parameters={"factor": "10"}) as harness:
        result = harness.infer(X=np.array([[1]], np.float32))
    assert result["Y"].tolist() == [[10]]


def test_infinity_is_refused() -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(X=np.array([[np.inf]], np.float32))
    assert result.error is not None
    assert result.error.message() == "X must be finite"
