"""Tests of the model. They need no server: run `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pybackend_testing import ModelHarness

MODEL = Path(__file__).parent / "my_model"


def test_each_text_of_a_batch_has_a_label() -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(TEXT=[["Great, I like it"], ["an awful bore"]])
    assert result["LABEL"].tolist() == [[b"positive"], [b"negative"]]
    # The scores of the model's own words: replace them by those of your model.
    np.testing.assert_allclose(result["SCORE"], [[0.97], [0.92]], atol=0.01)


def test_letters_of_any_language_pass() -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(TEXT=[["Schöne Grüße 😀"]])
    # No word of these is known: replace this score by that of your model.
    assert result["SCORE"].tolist() == [[0.5]]


def test_bytes_that_are_no_text_are_refused() -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(TEXT=[[b"\xff"]])
    assert result.error is not None
    assert result.error.message() == "TEXT must be UTF-8"
