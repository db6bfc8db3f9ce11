"""The file that holds a model: the configured one or the usual one, and what is said if there is none."""

import re

import pytest

from pybackend_sdk.backend import model_path
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import Runtime, bind_runtime


@pytest.fixture
def directory(tmp_path):
    runtime = Runtime()
    runtime.model_directory = str(tmp_path)
    previous = bind_runtime(runtime)
    yield tmp_path
    bind_runtime(previous)


def test_the_configured_file_wins_over_the_usual_ones(directory):
    for name in ("b.json", "other.json"):
        (directory / name).touch()
    assert model_path({"name": "m"}, ["a.json", "b.json"]) == str(directory / "b.json")
    assert model_path({"name": "m", "default_model_filename": "other.json"}, ["b.json"]) == str(
        directory / "other.json"
    )


def test_a_directory_is_found_too(directory):
    (directory / "model.onnx").mkdir()
    assert model_path({"name": "m"}, ["model.onnx"]) == str(directory / "model.onnx")


def test_there_is_no_such_file(directory):
    names = re.escape(f"model 'm': there is no a.onnx or b.onnx in {directory}, which ")
    with pytest.raises(TritonModelException, match=names + "is empty"):
        model_path({"name": "m"}, ["a.onnx", "b.onnx"])
    (directory / "A1.onnx").touch()
    (directory / "README").touch()
    expected = names + r'holds A1.onnx, README: rename .*, default_model_filename: "A1.onnx"'
    with pytest.raises(TritonModelException, match=expected):
        model_path({"name": "m"}, ["a.onnx", "b.onnx"])
