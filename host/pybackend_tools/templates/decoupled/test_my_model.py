"""Tests of the model. They need no server: run `pytest` in this directory."""

from __future__ import annotations

from pathlib import Path

from pybackend_testing import ModelHarness

MODEL = Path(__file__).parent / "my_model"


def test_each_word_is_a_response() -> None:
    with ModelHarness(MODEL) as harness:
        results = harness.stream(TEXT=["once upon a time"]).collect()
    words = [result["WORD"].item() for result in results]
    assert words == [b"once", b"upon", b"a", b"time"]


def test_no_word_is_no_response() -> None:
    with ModelHarness(MODEL) as harness:
        assert harness.stream(TEXT=["  "]).collect() == []
