"""Tests of the model. They need no server: run `pytest` in this directory."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from pybackend_testing import ModelHarness

MODEL = Path(__file__).parent / "my_model"


def picture(colour: str, kind: str = "PNG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (300, 200), colour).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_the_colour_is_found(kind: str) -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(PICTURE=[[picture("green", kind)]])
    assert result["LABEL"].tolist() == [[b"green"]]


def test_each_picture_of_a_batch_has_a_label() -> None:
    files = [[picture("blue", mode="RGBA")], [picture("white", mode="L")]]
    with ModelHarness(MODEL) as harness:
        result = harness.infer(PICTURE=files)
    assert result["LABEL"].tolist() == [[b"blue"], [b"white"]]
    assert (result["SCORE"] > 0.5).all()


def test_other_files_are_refused() -> None:
    with ModelHarness(MODEL) as harness:
        result = harness.infer(PICTURE=[[b"no picture"]])
    assert result.error is not None
    assert result.error.message().startswith("PICTURE must be a file of a picture: ")
