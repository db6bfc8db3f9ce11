"""Tests of the ensemble and its models. They need no server: run `pytest` here."""

from __future__ import annotations

from pathlib import Path

from pybackend_testing import EnsembleHarness, ModelHarness

HERE = Path(__file__).parent


def test_the_steps_follow_each_other() -> None:
    with EnsembleHarness(HERE / "my_model") as harness:
        result = harness.infer(TEXT=["One, two: three."])
    assert result["COUNT"].item() == 3


def test_only_letters_stay() -> None:
    with ModelHarness(HERE / "my_model_clean") as harness:
        result = harness.infer(TEXT=["one, two!"])
    assert result["CLEAN"].item() == b"one  two "


def test_words_are_counted() -> None:
    with ModelHarness(HERE / "my_model_count") as harness:
        result = harness.infer(TEXT=["one  two "])
    assert result["COUNT"].item() == 2
