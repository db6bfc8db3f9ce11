"""SavedModels served without code, with answers equal to the library's own, and directories that cannot be served."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import NUMBERS, arrays_of_types, infer
from tests.support.server import serving

tensorflow = pytest.importorskip("tensorflow")

from tests.backends.tensorflow import networks  # noqa: E402

# Its protobuf modules warn about Python's own deprecations, and it takes long to start.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

RANDOM = np.random.default_rng(17)

NAMED = """
platform: "tensorflow_savedmodel"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: 16 } ]
output [ { name: "y" data_type: TYPE_FP32 dims: 4 } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 20000 }
optimization { graph { level: -1 } }
parameters { key: "TF_NUM_INTRA_THREADS" value: { string_value: "1" } }
parameters { key: "TF_NUM_INTER_THREADS" value: { string_value: "1" } }
parameters { key: "TF_GRAPH_TAG" value: { string_value: "serve" } }
parameters { key: "TF_SIGNATURE_DEF" value: { string_value: "serving_default" } }
parameters { key: "MAX_SESSION_SHARE_COUNT" value: { string_value: "2" } }
parameters { key: "TF_USE_PER_SESSION_THREADS" value: { string_value: "true" } }
"""
TENSORS = """
max_batch_size: 4
input [ {{ name: "{0}" data_type: {1} dims: [ {2} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
"""


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'


REFUSED = {
    "wrong_name": TENSORS.format("X1", "TYPE_FP32", 16),
    "wrong_type": TENSORS.format("x", "TYPE_INT8", 16),
    "wrong_dims": TENSORS.format("x", "TYPE_FP32", 5),
    "parameter": parameter("TF_NUM_THREADS", "1"),
    "signature": parameter("TF_SIGNATURE_DEF", "serving"),
    "tag": parameter("TF_GRAPH_TAG", "train"),
}
EXPECTED = {
    "wrong_name": r"unexpected inference input 'X1', allowed inputs are: x TYPE_FP32 \[-1, 16\] \(in model.savedmodel of model",
    "wrong_type": r"configuration expects datatype TYPE_INT8 for input 'x', model provides TYPE_FP32 \(model.savedmodel\)",
    "wrong_dims": r"tensor 'x': the model expects 2 dimensions \(shape \[-1, 16\], in model.savedmodel\) but the model configuration",
    "parameter": r"backend 'tensorflow' has no parameter 'TF_NUM_THREADS': did you mean TF_NUM_INT",
    "signature": r"has no signature 'serving': did you mean serving_default\? Parameters TF_SIGNATURE_DEF chooses one",
    "tag": r"no graph of \S+ has the tag 'train', their tags are serve: parameters TF_GRAPH_TAG chooses one",
    "truncated": r"model 'truncated': \S+/1/model.savedmodel cannot be read: .*Its saved_model.pb is truncated, or not one of",
    "empty": r"model 'empty': \S+/1/model.savedmodel holds no graph: its saved_model.pb is empty, or not one of TensorFlow",
    "no_weights": r"model 'no_weights': TensorFlow \S+ cannot load \S+/1/model.savedmodel: .*Its variables may be missing or truncated",
    "hollow": r"model 'hollow': \S+/1/model.savedmodel is no SavedModel: a SavedModel is a directory with saved_model.pb and",
    "graphdef": r"model 'graphdef': \S+/1/model.graphdef is a frozen graph, which is not supported. .*convert it to a SavedModel",
    "old_platform": r'model \'old_platform\': platform \\?"tensorflow_graphdef\\?" is not supported. .*convert it to a SavedModel',
    "lite": r'model \'lite\': model.tflite is a file of LiteRT: write backend: \\?"litert',
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return networks.save(tmp_path_factory.mktemp("saved") / "model.savedmodel")


@pytest.fixture(scope="module")
def server(tmp_path_factory, saved):
    models = tmp_path_factory.mktemp("tensorflow") / "models"

    def model(name: str, config: str = "") -> Path:
        (models / name / "1").mkdir(parents=True)
        backend = "" if "platform" in config or not config else 'backend: "tensorflow"\n'
        (models / name / "config.pbtxt").write_text(backend + config)
        return models / name / "1" / "model.savedmodel"

    def copy(path: Path) -> Path:
        for source in saved.rglob("*"):
            if source.is_file():
                target = path / source.relative_to(saved)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
        return path

    copy(model("bare"))
    copy(model("named", NAMED))
    copy(model("text", parameter("TF_SIGNATURE_DEF", "upper")))
    copy(model("everything", parameter("TF_SIGNATURE_DEF", "everything")))
    copy(model("hungry", parameter("TF_SIGNATURE_DEF", "zeros") + parameter("SANDBOX_MEMORY_MB", "4000")))
    copy(model("scalar", parameter("TF_SIGNATURE_DEF", "times")))
    for name, config in REFUSED.items():
        copy(model(name, config))
    description = copy(model("truncated")) / "saved_model.pb"
    description.write_bytes(description.read_bytes()[:-100])
    (copy(model("empty")) / "saved_model.pb").write_bytes(b"")
    for weights in (copy(model("no_weights")) / "variables").iterdir():
        weights.unlink()
    model("hollow").mkdir()
    model("graphdef").with_name("model.graphdef").write_text("This is no graph.")
    model("old_platform", 'platform: "tensorflow_graphdef"').with_name("model.graphdef").write_text("")
    model("lite", 'default_model_filename: "model.tflite"').with_name("model.tflite").write_text("")
    (models / "converted" / "1").mkdir(parents=True)
    converter = tensorflow.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=["serving_default"])
    (models / "converted" / "1" / "model.tflite").write_bytes(converter.convert())
    count = len(list(models.iterdir()))
    with serving(models, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(rf"{count - len(EXPECTED)} of {count} models are ready", 500)
        yield server


def tensors_of(config):
    return [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in (*config["input"], *config["output"])]


def test_a_directory_alone_is_served(server, saved):
    config = server.get("/v2/models/bare/config").json
    assert (config["backend"], config["max_batch_size"]) == ("tensorflow", 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert tensors_of(config) == [("x", "TYPE_FP32", [16]), ("most", "TYPE_FP32", [1]), ("y", "TYPE_FP32", [4])]
    x = RANDOM.standard_normal((3, 16)).astype(np.float32)
    answer, expected = infer(server, "bare", {"x": x}), networks.direct(saved, "serving_default", x=x)
    for name in ("most", "y"):
        np.testing.assert_allclose(answer[name].reshape(expected[name].shape), expected[name], rtol=1e-6)
    assert list(infer(server, "bare", {"x": x}, outputs=[{"name": "most"}]).outputs) == ["most"]


def test_a_configuration_written_for_the_reference(server, saved):
    """The old name of the backend, its parameters, and requests to two instances at the same time."""
    config = server.get("/v2/models/named/config").json
    assert (config["backend"], config["max_batch_size"]) == ("tensorflow", 8)
    assert "parameters MAX_SESSION_SHARE_COUNT has no effect: each instance is a process" in server.output
    arrays = [RANDOM.standard_normal((1 + place % 3, 16)).astype(np.float32) for place in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda array: infer(server, "named", {"x": array})["y"], arrays))
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_allclose(
            answer, networks.direct(saved, "serving_default", x=array)["y"], rtol=1e-5, atol=1e-6
        )


def test_a_converted_file_of_litert(server, saved):
    """By LiteRT, or, where that is not installed, by TensorFlow's interpreter."""
    config = server.get("/v2/models/converted/config").json
    assert (config["backend"], config["max_batch_size"]) == ("litert", 4)
    x = RANDOM.standard_normal((3, 16)).astype(np.float32)
    expected = networks.direct(saved, "serving_default", x=x)
    np.testing.assert_allclose(infer(server, "converted", {"x": x})["y"], expected["y"], rtol=1e-5, atol=1e-6)


def test_all_types_of_numbers_and_an_output_that_is_a_scalar(server):
    arrays = arrays_of_types(NUMBERS, (2, 3))
    answer = infer(server, "everything", arrays)
    for name, array in arrays.items():
        assert (answer[f"{name}_out"].dtype, answer[f"{name}_out"].tolist()) == (array.dtype, array.ravel().tolist())
    assert answer["most"].ravel().tolist() == [np.finfo(np.float32).max]


def test_a_request_without_memory_harms_no_other(server):
    refused = infer(server, "hungry", {"n": np.array([3_000_000_000])})
    assert refused.status == 500
    assert re.search(
        r"OOM when allocating .*\. The model's process has used up its limit of 4000 MB: send fewer", refused.error
    )
    assert infer(server, "hungry", {"n": np.array([10])})["y"].tolist() == [10]


def test_strings(server):
    words = np.array([["né".encode(), b""], [b"a\0", b"\xff"]], object)
    assert infer(server, "text", {"s": words})["t"].reshape(-1).tolist() == [b"N\xc3\xa9", b"", b"A\0", b"\xff"]


def test_a_scalar_is_a_tensor_of_one_element(server):
    assert tensors_of(server.get("/v2/models/scalar/config").json)[0] == ("by", "TYPE_INT64", [1])
    answer = infer(server, "scalar", {"by": np.array([3]), "n": np.array([1, 2])})
    assert answer["product"].tolist() == [3, 6]
    assert answer["sum"].tolist() == [9]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_load_is_refused_with_a_reason(server, name):
    line = re.search(rf"failed to load '{name}' .*", server.output)[0]
    assert re.search(EXPECTED[name], line), line
    assert "Traceback" not in line
    assert "At:" not in line
