"""ONNX files served without code: what is read from them, and answers equal to the library's own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import NUMBERS, arrays_of_types, infer
from tests.support.server import name_of, serving

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx", reason="the package onnx makes the models")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tests.backends.onnxruntime import graphs  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RANDOM = np.random.default_rng(7)
TYPES = {
    "fp64": (TensorProto.DOUBLE, np.float64, "TYPE_FP64"),
    "fp16": (TensorProto.FLOAT16, np.float16, "TYPE_FP16"),
    "int64": (TensorProto.INT64, np.int64, "TYPE_INT64"),
    "uint8": (TensorProto.UINT8, np.uint8, "TYPE_UINT8"),
}
SIDE = 256
"""One row of the model ``large`` is as large as the outputs that are computed in output memory."""

NAMED = """
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 20000 }
optimization { graph { level: 1 } input_pinned_memory { enable: false } }
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
parameters { key: "execution_mode" value: { string_value: "1" } }
parameters { key: "session.disable_prepacking" value: { string_value: "1" } }
parameters { key: "memory.enable_memory_arena_shrinkage" value: { string_value: "cpu:0" } }
parameters { key: "gpu_mem_limit" value: { string_value: "1000" } }
"""


def network(path: Path, *, external: bool = False) -> Path:
    """``y = relu(x @ w + b)``, from 16 to 4 values a row."""
    weights = numpy_helper.from_array(RANDOM.standard_normal((16, 4)).astype(np.float32), "w")
    bias = numpy_helper.from_array(RANDOM.standard_normal(4).astype(np.float32), "b")
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Relu", ["g"], ["y"])]
    tensors = [("x", TensorProto.FLOAT, ["rows", 16])], [("y", TensorProto.FLOAT, ["rows", 4])]
    return graphs.save(path, nodes, *tensors, initial=[weights, bias], external=external)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    models = tmp_path_factory.mktemp("onnx") / "models"
    graphs.addition(models / "bare" / "1" / "model.onnx")
    for name, (element, _, _) in TYPES.items():
        graphs.addition(models / name / "1" / "model.onnx", element)
    network(models / "named" / "1" / "model.onnx")
    (models / "named" / "config.pbtxt").write_text(NAMED)
    network(models / "external" / "1" / "model.onnx" / "model.onnx", external=True)
    graphs.addition(models / "fixed" / "1" / "model.onnx", rows=2)
    one = numpy_helper.from_array(np.array([1], np.float32), "by")
    graphs.save(
        models / "optional" / "1" / "model.onnx",
        [helper.make_node("Add", ["x", "by"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 2]), ("by", TensorProto.FLOAT, [1])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        initial=[one],
    )
    (models / "optional" / "config.pbtxt").write_text(
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: "by" data_type: TYPE_FP32 dims: 1 optional: true } ]'
    )
    text = [("s", TensorProto.STRING, ["n", 2])]
    graphs.save(
        models / "text" / "1" / "model.onnx", [helper.make_node("Identity", ["s"], ["t"])], text, [("t", *text[0][1:])]
    )
    rows, scalar = [("x", TensorProto.BOOL, ["n", 2])], [("up", TensorProto.BOOL, [])]
    graphs.save(
        models / "scalar" / "1" / "model.onnx",
        [helper.make_node("And", ["x", "up"], ["y"])],
        [*rows, *scalar],
        [("y", TensorProto.BOOL, ["n", 2])],
    )
    square = ["n", SIDE, SIDE]
    graphs.save(
        models / "large" / "1" / "model.onnx",
        [
            helper.make_node("Neg", ["x"], ["y"]),
            helper.make_node("ReduceMax", ["x"], ["most"], axes=[1, 2], keepdims=0),
        ],
        [("x", TensorProto.FLOAT, square)],
        [("y", TensorProto.FLOAT, square), ("most", TensorProto.FLOAT, ["n"])],
    )
    of_types = [(name, helper.np_dtype_to_tensor_dtype(np.dtype(name)), [2, 3]) for name in NUMBERS]
    graphs.save(
        models / "everything" / "1" / "model.onnx",
        [
            *(helper.make_node("Identity", [name], [f"{name}_out"]) for name in NUMBERS),
            helper.make_node("ReduceMax", ["float32"], ["most"], keepdims=0),
        ],
        of_types,
        [*((f"{name}_out", *rest) for name, *rest in of_types), ("most", TensorProto.FLOAT, [])],
    )
    graphs.save(
        models / "accumulator" / "1" / "model.onnx",
        [
            helper.make_node("Add", ["x", "before"], ["after"]),
            helper.make_node("Neg", ["after"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 1]), ("before", TensorProto.FLOAT, ["n", 1])],
        [("after", TensorProto.FLOAT, ["n", 1]), ("y", TensorProto.FLOAT, ["n", 1])],
    )
    (models / "accumulator" / "config.pbtxt").write_text(
        'max_batch_size: 2 sequence_batching { state [ { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: 1 } ] }'
    )
    nodes = [("ConstantOfShape", "n", "zeros"), ("Cos", "zeros", "ones"), ("ReduceSum", "ones", "y")]
    graphs.save(
        models / "hungry" / "1" / "model.onnx",
        [helper.make_node(kind, [before], [after]) for kind, before, after in nodes],
        [("n", TensorProto.INT64, [1])],
        [("y", TensorProto.FLOAT, [1])],
    )
    (models / "hungry" / "config.pbtxt").write_text(
        'parameters { key: "SANDBOX_MEMORY_MB" value: { string_value: "400" } }'
    )
    return models


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, ready=False) as server:
        server.wait_for(r"models are ready in", 240)
        yield server


def test_a_process_without_memory_or_that_aborts_harms_nobody_else(server):
    def ask(count):
        tensor = {"name": "n", "datatype": "INT64", "shape": [1], "data": [count]}
        return server.request("POST", "/v2/models/hungry/infer", {"inputs": [tensor]})

    reply = ask(500_000_000)
    assert reply.status == 500
    assert reply.error.endswith(
        ". The model's process has used up its limit of 400 MB: send fewer rows at a time, or raise SANDBOX_MEMORY_MB in the "
        "model's parameters"
    )
    assert ask(10).json["outputs"][0]["data"] == [10]
    (pid,) = (pid for pid in server.stub_pids() if name_of(pid) == "hungry_0")
    os.kill(pid, signal.SIGABRT)
    server.wait_for(r"hungry_0.*killed by signal 6 \(SIGABRT\)", 60)
    assert ask(10).json["outputs"][0]["data"] == [10]


def test_the_server_keeps_the_state_of_a_sequence(server):
    """It is an input and an output of the file, and none for clients."""
    metadata = server.get("/v2/models/accumulator").json
    assert [[tensor["name"] for tensor in metadata[kind]] for kind in ("inputs", "outputs")] == [["x"], ["y"]]
    found = []
    for place, number in enumerate((1, 2, 4)):
        body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}],
            "parameters": {"sequence_id": 7, "sequence_start": place == 0, "sequence_end": place == 2},
        }
        (output,) = server.infer("accumulator", body).json["outputs"]
        found.append((output["name"], output["data"]))
    assert found == [("y", [-1]), ("y", [-3]), ("y", [-7])]


def direct(repository, model, inputs):
    """The library's own answer."""
    path = repository / model / "1" / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path / "model.onnx" if path.is_dir() else path, options)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


def tensors_of(config):
    return [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in (*config["input"], *config["output"])]


def test_a_file_alone_is_served(server):
    config = server.get("/v2/models/bare/config").json
    assert (config["backend"], config["max_batch_size"]) == ("onnxruntime", 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert tensors_of(config) == [(name, "TYPE_FP32", [3]) for name in ("a", "b", "sum")]
    a, b = RANDOM.random((2, 4, 3), np.float32)
    assert np.array_equal(infer(server, "bare", {"a": a, "b": b})["sum"], a + b)


@pytest.mark.parametrize("name", TYPES)
def test_answers_are_the_librarys_own_bit_by_bit(server, repository, name):
    _, dtype, data_type = TYPES[name]
    assert tensors_of(server.get(f"/v2/models/{name}/config").json)[0] == ("a", data_type, [3])
    inputs = {tensor: (RANDOM.random((3, 3)) * 100).astype(dtype) for tensor in "ab"}
    served = infer(server, name, inputs)["sum"]
    assert served.dtype == dtype
    assert served.tobytes() == direct(repository, name, inputs)["sum"].tobytes()


def test_all_types_of_numbers_and_an_output_that_is_a_scalar(server):
    """Without a batch."""
    arrays = arrays_of_types(NUMBERS, (2, 3))
    answer = infer(server, "everything", arrays)
    for name, array in arrays.items():
        assert (answer[f"{name}_out"].dtype, answer[f"{name}_out"].tolist()) == (array.dtype, array.tolist())
    assert answer["most"].ravel().tolist() == [np.finfo(np.float32).max]


def test_a_configuration_written_for_the_reference(server, repository):
    """The old name of the backend, its parameters, and requests that are batched."""
    config = server.get("/v2/models/named/config").json
    assert (config["backend"], config["max_batch_size"]) == ("onnxruntime", 8)
    assert "parameters gpu_mem_limit has no effect: it concerns GPUs only" in server.output
    arrays = [RANDOM.standard_normal((rows, 16)).astype(np.float32) for rows in (1, 3, 2, 1)]
    for array in arrays:
        expected = direct(repository, "named", {"x": array})["y"]
        np.testing.assert_allclose(infer(server, "named", {"x": array})["y"], expected, rtol=1e-5)


def test_weights_in_another_file(server, repository):
    array = RANDOM.standard_normal((2, 16)).astype(np.float32)
    assert np.array_equal(
        infer(server, "external", {"x": array})["y"], direct(repository, "external", {"x": array})["y"]
    )


def test_a_file_without_a_batch_dimension(server):
    config = server.get("/v2/models/fixed/config").json
    assert (config["max_batch_size"], config.get("dynamic_batching")) == (0, None)
    assert tensors_of(config)[0] == ("a", "TYPE_FP32", [2, 3])
    a = RANDOM.random((2, 3), np.float32)
    assert np.array_equal(infer(server, "fixed", {"a": a, "b": a})["sum"], a + a)


def test_an_initial_value_is_an_optional_input(server):
    x = np.array([[1, 2]], np.float32)
    assert infer(server, "optional", {"x": x})["y"].tolist() == [[2, 3]]
    assert infer(server, "optional", {"x": x, "by": np.array([5], np.float32)})["y"].tolist() == [[6, 7]]


def test_strings(server):
    words = np.array([["né".encode(), b""], [b"a", b"\xe2\x82\xac"]], object)
    assert infer(server, "text", {"s": words})["t"].reshape(-1).tolist() == words.reshape(-1).tolist()
    refused = infer(server, "text", {"s": np.array([[b"\xff", b""]], object)})
    assert refused.status == 500
    assert "input 's' has an element that is not UTF-8 text: invalid start byte" in refused.error


def test_a_scalar_is_a_tensor_of_one_element(server):
    x = np.array([[True, False]])
    assert infer(server, "scalar", {"x": x, "up": np.array([True])})["y"].tolist() == x.tolist()
    assert not infer(server, "scalar", {"x": x, "up": np.array([False])})["y"].any()


def test_large_outputs_of_known_size(server):
    for rows in (1, 3):
        x = RANDOM.standard_normal((rows, SIDE, SIDE)).astype(np.float32)
        answer = infer(server, "large", {"x": x})
        assert np.array_equal(answer["y"], -x)
        assert np.array_equal(answer["most"].reshape(rows), x.max(axis=(1, 2)))
