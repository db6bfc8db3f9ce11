"""ONNX files served without code: what is read from them, and answers equal to the library's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.server import serving

pytest.importorskip("onnxruntime")
graphs = pytest.importorskip("tests.backends.onnxruntime.graphs", reason="the package onnx makes the models")

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    models = tmp_path_factory.mktemp("onnx") / "models"
    graphs.addition(models / "bare" / "1" / "model.onnx")
    return models


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"models? (is|are) ready in")
        yield server


def test_a_file_alone_is_served(server):
    config = server.get("/v2/models/bare/config").json
    assert config["backend"] == "onnxruntime"
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    tensors = [
        (tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in (*config["input"], *config["output"])
    ]
    assert tensors == [(name, "TYPE_FP32", [3]) for name in ("a", "b", "sum")]
    a, b = np.random.default_rng(0).random((2, 4, 3), np.float32)
    assert np.array_equal(infer(server, "bare", {"a": a, "b": b})["sum"], a + b)
