"""Tests of the steps' models. They need no server: run `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

from pybackend_testing import ModelHarness

HERE = Path(__file__).parent


def test_only_letters_stay() -> None:
    with ModelHarness(HERE / "my_model_clean") as harness:
        result = harness.infer(TEXT=["one, two!"])
    assert result["CLEAN"].item() == b"one  two "


def test_words_are_counted() -> None:
    with ModelHarness(HERE / "my_model_count") as harness:
        result = harness.infer(TEXT=["one  two "])
    assert result["COUNT"].item() == 2
