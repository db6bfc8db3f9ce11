"""Files of LiteRT served without code, with answers equal to the library's own, and files that cannot be served."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import NUMBERS, arrays_of_types, infer
from tests.support.server import serving

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

from tests.backends.litert import files  # noqa: E402
from tests.backends.litert.files import Op, Type  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.timeout(300)]

RANDOM = np.random.default_rng(13)
SIDE = 300
"""One row of the model ``large`` is larger than what is copied twice."""

TWO_INSTANCES = """
backend: "litert"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: 16 } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 20000 }
parameters { key: "NUM_THREADS" value: { string_value: "1" } }
"""
TENSORS = """
max_batch_size: 4
input [ {{ name: "{0}" data_type: {1} dims: [ {2} ] }}, {{ name: "b" data_type: TYPE_FP32 dims: [ 3 ] }} ]
output [ {{ name: "sum" data_type: TYPE_FP32 dims: [ 3 ] }} ]
"""


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'


REFUSED = {
    "wrong_name": TENSORS.format("A1", "TYPE_FP32", 3),
    "wrong_type": TENSORS.format("a", "TYPE_INT8", 3),
    "wrong_dims": TENSORS.format("a", "TYPE_FP32", 5),
    "parameter": parameter("THREADS", "1"),
    "signature": parameter("SIGNATURE", "predict"),
}
NO_FILE = r"The model is not a valid Flatbuffer buffer. The file is truncated, or no file of LiteRT"
NEWER = "A newer ai-edge-litert in the model's environment mends it"
EXPECTED = {
    "truncated": rf"model 'truncated': LiteRT cannot load \S+/1/model.tflite: {NO_FILE}",
    "no_model": rf"LiteRT cannot load \S+: {NO_FILE}",
    "version": rf"LiteRT cannot load \S+: Didn't find op for builtin opcode 'ADD' version '99'.* {NEWER}",
    "operation": rf"LiteRT cannot load \S+: Op builtin_code out of range: 250.* {NEWER}",
    "custom": r"LiteRT cannot load \S+: Encountered unresolved custom op: Frobnicate.* Write the model with TFLITE_BUILTINS only",
    "choice": r"model 'choice': model.tflite has the signatures one, two: choose one with parameters SIGNATURE",
    "one_row": r"model 'one_row': model.tflite does not take batches of any size, as max_batch_size: 4 asks for: .*failed to prepare",
    "wrong_name": r"unexpected inference input 'A1', allowed inputs are: a TYPE_FP32 \[-1, 3\], b TYPE_FP32 \[-1, 3\]",
    "wrong_type": r"configuration expects datatype TYPE_INT8 for input 'a', model provides TYPE_FP32 \(model.tflite\)",
    "wrong_dims": r"model 'wrong_dims', tensor 'a': the model expects 2 dimensions \(shape \[-1, 3\], in model.tflite\) but",
    "parameter": r"backend 'litert' has no parameter 'THREADS': did you mean NUM_THREADS",
    "signature": r"parameters SIGNATURE is 'predict', and model.tflite has no signatures",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    models = tmp_path_factory.mktemp("litert") / "models"

    def path(name: str, config: str | None = None) -> Path:
        (models / name / "1").mkdir(parents=True)
        if config is not None:
            (models / name / "config.pbtxt").write_text(
                config if "backend" in config else f'backend: "litert" {config}'
            )
        return models / name / "1" / "model.tflite"

    files.addition(path("bare"))
    files.addition(path("int64"), Type.INT64)
    files.dense(path("dense"), RANDOM)
    files.dense(path("named", TWO_INSTANCES), np.random.default_rng(2))
    files.dense(path("second", "max_batch_size: 2 " + parameter("SIGNATURE", "two")), RANDOM, -1, ("one", "two"))
    files.quantised(path("quantised"))
    files.texts(path("text"))
    files.square(path("large"), SIDE)
    files.numbers(path("everything"), NUMBERS)
    files.zeros(path("hungry", parameter("SANDBOX_MEMORY_MB", "400")))
    for name, config in REFUSED.items():
        files.addition(path(name, config))
    whole = files.dense(path("truncated"), RANDOM)
    whole.write_bytes(whole.read_bytes()[:-20])
    path("no_model").write_text("This is no model.")
    files.addition(path("version"), version=99)
    files.addition(path("operation"), op=250)
    files.addition(path("custom"), op=Op.CUSTOM)
    files.dense(path("choice"), RANDOM, signatures=("one", "two"))
    files.reshaped(path("one_row", "max_batch_size: 4"))
    return models


@pytest.fixture(scope="module")
def server(repository):
    count = len(list(repository.iterdir()))
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(rf"{count - len(EXPECTED)} of {count} models are ready", 240)
        yield server


def direct(repository, model, inputs):
    """The library's own answer."""
    loaded = interpreter.Interpreter(str(repository / model / "1" / "model.tflite"), num_threads=1)
    places = {each["name"]: each["index"] for each in loaded.get_input_details()}
    for name, array in inputs.items():
        loaded.resize_tensor_input(places[name], array.shape)
    loaded.allocate_tensors()
    for name, array in inputs.items():
        loaded.set_tensor(places[name], array)
    loaded.invoke()
    return {each["name"]: loaded.get_tensor(each["index"]) for each in loaded.get_output_details()}


def tensors_of(config):
    return [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in (*config["input"], *config["output"])]


def test_a_file_alone_is_served(server, repository):
    config = server.get("/v2/models/bare/config").json
    assert (config["backend"], config["max_batch_size"]) == ("litert", 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert tensors_of(config) == [(name, "TYPE_FP32", [3]) for name in ("a", "b", "sum")]
    for rows in (1, 4, 2):
        a, b = RANDOM.random((2, rows, 3), np.float32)
        served = infer(server, "bare", {"a": a, "b": b})["sum"]
        assert served.tobytes() == direct(repository, "bare", {"a": a, "b": b})["sum"].tobytes()
    longs = RANDOM.integers(-(2**60), 2**60, (2, 3))
    assert np.array_equal(infer(server, "int64", {"a": longs, "b": longs})["sum"], longs * 2)


def test_a_fixed_batch_without_configuration_is_kept(server, repository):
    config = server.get("/v2/models/dense/config").json
    assert config["max_batch_size"] == 0
    assert tensors_of(config) == [("X", "TYPE_FP32", [1, 16]), ("Y", "TYPE_FP32", [1, 4])]
    x = RANDOM.random((1, 16), np.float32)
    assert infer(server, "dense", {"X": x})["Y"].tobytes() == direct(repository, "dense", {"x": x})["y"].tobytes()


def test_a_fixed_batch_is_resized_for_a_configuration_that_batches(server, repository):
    """By two instances, for requests at the same time."""
    arrays = [RANDOM.standard_normal((1 + place % 3, 16)).astype(np.float32) for place in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda array: infer(server, "named", {"X": array})["Y"], arrays))
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_allclose(answer, direct(repository, "named", {"x": array})["y"], rtol=1e-5, atol=1e-6)


def test_one_of_several_signatures(server, repository):
    x = RANDOM.random((2, 16), np.float32)
    expected = direct(repository, "second", {"x": x})["y"]
    np.testing.assert_allclose(infer(server, "second", {"X": x})["Y"], expected, rtol=1e-5)


def test_quantised_tensors_are_integers(server):
    assert tensors_of(server.get("/v2/models/quantised/config").json)[0] == ("q", "TYPE_INT8", [2])
    assert "input 'q' is quantised: its values mean 0.5 * (value - 0)" in server.output
    assert "output 'sum' is quantised: its values mean 1 * (value - 3)" in server.output
    assert infer(server, "quantised", {"q": np.array([[1, -4]], np.int8)})["sum"].tolist() == [[4, -1]]


def test_all_types_of_numbers_and_an_output_that_is_a_scalar(server):
    arrays = arrays_of_types(NUMBERS, (2, 3))
    answer = infer(server, "everything", arrays)
    for name, array in arrays.items():
        assert (answer[f"{name}_out"].dtype, answer[f"{name}_out"].tolist()) == (array.dtype, array.ravel().tolist())
    assert answer["most"].tolist() == np.finfo(np.float32).max


def test_a_request_without_memory_harms_no_other(server):
    refused = infer(server, "hungry", {"n": np.array([500_000_000], np.int32)})
    assert (refused.status, refused.error) == (
        500,
        "LiteRT cannot compute this request: Node number 0 (FILL) failed to invoke.",
    )
    assert infer(server, "hungry", {"n": np.array([10], np.int32)})["y"] == 0


def test_strings(server):
    words = np.array([["né".encode(), b""], [b"a\0", b"\xff"]], object)
    assert infer(server, "text", {"s": words})["t"].reshape(-1).tolist() == words.reshape(-1).tolist()


def test_large_outputs(server):
    for rows in (1, 3):
        x = RANDOM.standard_normal((rows, SIDE, SIDE)).astype(np.float32)
        assert np.array_equal(infer(server, "large", {"x": x})["y"], x + x)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_load_is_refused_with_a_reason(server, name):
    line = re.search(rf"failed to load '{name}' .*", server.output)[0]
    assert re.search(EXPECTED[name], line), line
    assert "Traceback" not in line
    assert "At:" not in line
