"""Files of OpenVINO served without code: what is read from them, and answers equal to the library's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import NUMBERS, arrays_of_types, infer
from tests.support.server import serving

openvino = pytest.importorskip("openvino")

from openvino import Type  # noqa: E402
from openvino import opset13 as ops  # noqa: E402

from tests.backends.openvino import networks  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.timeout(300)]

RANDOM = np.random.default_rng(11)
TYPES = {
    "fp64": (Type.f64, np.float64, "TYPE_FP64"),
    "fp16": (Type.f16, np.float16, "TYPE_FP16"),
    "int64": (Type.i64, np.int64, "TYPE_INT64"),
    "uint8": (Type.u8, np.uint8, "TYPE_UINT8"),
}
SIDE = 256
"""One row of the model ``large`` is as large as the outputs that are computed in output memory."""

NAMED = """
backend: "openvino"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 20000 }
parameters { key: "INFERENCE_NUM_THREADS" value: { string_value: "1" } }
parameters { key: "NUM_STREAMS" value: { string_value: "AUTO" } }
parameters { key: "PERFORMANCE_HINT" value: { string_value: "LATENCY" } }
parameters { key: "COMPILATION_NUM_THREADS" value: { string_value: "1" } }
parameters { key: "INFERENCE_PRECISION_HINT" value: { string_value: "f32" } }
parameters { key: "TARGET_DEVICE" value: { string_value: "CPU" } }
"""
PADDED = """
backend: "openvino"
max_batch_size: 2
parameters { key: "SKIP_OV_DYNAMIC_BATCHSIZE" value: { string_value: "YES" } }
parameters { key: "ENABLE_BATCH_PADDING" value: { string_value: "YES" } }
"""
RESHAPED = """
backend: "openvino"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, 10, 6 ] } ]
parameters { key: "RESHAPE_IO_LAYERS" value: { string_value: "YES" } }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    models = tmp_path_factory.mktemp("openvino") / "models"
    networks.addition(models / "bare" / "1" / "model.xml")
    for name, (element, _, _) in TYPES.items():
        networks.addition(models / name / "1" / "model.xml", element)
    networks.dense(models / "named" / "1" / "model.xml", RANDOM)
    networks.addition(models / "fixed" / "1" / "model.xml", rows=2)
    networks.numbers(models / "everything" / "1" / "model.xml", NUMBERS)
    networks.zeros(models / "hungry" / "1" / "model.xml")
    for name, config in {
        "hungry": 'backend: "openvino" parameters { key: "SANDBOX_MEMORY_MB" value: { string_value: "1000" } }',
        "named": NAMED,
        "batched": 'backend: "openvino" max_batch_size: 4',
        "padded": PADDED,
        "unpadded": PADDED.replace(
            'ENABLE_BATCH_PADDING" value: { string_value: "YES"', 'ENABLE_BATCH_PADDING" value: { string_value: "NO"'
        ),
        "reshaped": RESHAPED,
    }.items():
        if name not in {"hungry", "named"}:
            networks.image(models / name / "1" / "model.xml", np.random.default_rng(3))
        (models / name / "config.pbtxt").write_text(config)
    text = networks.parameter("s", [-1, 2], Type.string)
    networks.save(models / "text" / "1" / "model.xml", [text], {"t": text})
    (models / "text" / "config.pbtxt").write_text(
        'backend: "openvino" max_batch_size: 4 output [ { name: "t" data_type: TYPE_STRING dims: 2 } ]'  # also called s
    )
    x, up = networks.parameter("x", [-1, 2], Type.boolean), networks.parameter("up", [], Type.boolean)
    networks.save(models / "scalar" / "1" / "model.xml", [x, up], {"y": ops.logical_and(x, up)})
    x, y = networks.parameter("x", [-1, -1]), networks.parameter("y", [-1, -1])
    networks.save(models / "pair" / "1" / "model.xml", [x, y], {"z": ops.add(x, y)})
    x = networks.parameter("x", [-1, SIDE, SIDE])
    networks.save(
        models / "large" / "1" / "model.xml",
        [x],
        {"y": ops.negative(x), "z": ops.abs(x), "most": ops.reduce_max(x, np.array([1, 2]), False)},
    )
    x = networks.parameter("x", [-1])
    networks.save(models / "counted" / "1" / "model.xml", [x], {"places": ops.non_zero(x, "i64")})
    (models / "counted" / "config.pbtxt").write_text(
        'backend: "openvino" input [ { name: "x" data_type: TYPE_FP32 dims: -1 } ]'
    )
    return models


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, ready=False) as server:
        server.wait_for(r"models are ready in", 240)
        yield server


def direct(repository, model, inputs, shapes=None):
    """The library's own answer."""
    core = openvino.Core()
    read = core.read_model(repository / model / "1" / "model.xml")
    if shapes:
        read.reshape(shapes)
    compiled = core.compile_model(read, "CPU", {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
    answers = compiled(inputs)
    return {port.get_any_name(): np.array(answers[port]) for port in compiled.outputs}


def tensors_of(config):
    return [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in (*config["input"], *config["output"])]


def test_a_file_alone_is_served(server):
    config = server.get("/v2/models/bare/config").json
    assert (config["backend"], config["max_batch_size"]) == ("openvino", 4)
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


def test_a_configuration_written_for_the_reference(server, repository):
    """Its parameters, and requests to two instances at the same time, which are batched."""
    config = server.get("/v2/models/named/config").json
    assert (config["backend"], config["max_batch_size"]) == ("openvino", 8)
    assert "parameters NUM_STREAMS has no effect: an instance is one stream" in server.output
    arrays = [RANDOM.standard_normal((1 + place % 3, 16)).astype(np.float32) for place in range(12)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda array: infer(server, "named", {"x": array})["y"], arrays))
    for array, answer in zip(arrays, answers, strict=True):
        np.testing.assert_allclose(answer, direct(repository, "named", {"x": array})["y"], rtol=1e-5, atol=1e-6)


def test_a_fixed_batch_is_completed_as_it_is(server):
    config = server.get("/v2/models/fixed/config").json
    assert (config["max_batch_size"], config.get("dynamic_batching")) == (0, None)
    assert tensors_of(config)[0] == ("a", "TYPE_FP32", [2, 3])
    a = RANDOM.random((2, 3), np.float32)
    assert np.array_equal(infer(server, "fixed", {"a": a, "b": a})["sum"], a + a)


@pytest.mark.parametrize("model", ["batched", "padded"])
def test_a_file_with_a_fixed_batch_serves_batches_of_other_sizes(server, repository, model):
    """With a batch dimension of any size, and with the size of the file, filled up."""
    assert ("y", "TYPE_FP32", [5, 6, 6]) in tensors_of(server.get(f"/v2/models/{model}/config").json)
    for rows in (1, 2):
        x = RANDOM.standard_normal((rows, 3, 8, 8)).astype(np.float32)
        expected = direct(repository, model, {"x": x}, {"x": [rows, 3, 8, 8]})
        answer = infer(server, model, {"x": x})
        for name in ("y", "flat"):
            np.testing.assert_allclose(answer[name].reshape(expected[name].shape), expected[name], rtol=1e-4, atol=1e-4)


def test_a_batch_that_is_not_filled_up_is_refused(server):
    refused = infer(server, "unpadded", {"x": np.zeros((1, 3, 8, 8), np.float32)})
    assert refused.status == 500
    assert "the batch has 1 rows, and the model's file fixes them to 2: send as many" in refused.error
    assert infer(server, "unpadded", {"x": np.zeros((2, 3, 8, 8), np.float32)}).status == 200


def test_inputs_of_other_sizes_than_in_the_file(server, repository):
    x = RANDOM.standard_normal((3, 3, 10, 6)).astype(np.float32)
    expected = direct(repository, "reshaped", {"x": x}, {"x": [3, 3, 10, 6]})
    np.testing.assert_allclose(infer(server, "reshaped", {"x": x})["y"], expected["y"], rtol=1e-4, atol=1e-4)


def test_all_types_of_numbers_and_an_output_that_is_a_scalar(server, repository):
    """The library itself computes INT64 as INT32 and FP64 as FP32."""
    arrays = arrays_of_types(NUMBERS, (2, 3))
    answer, own = infer(server, "everything", arrays), direct(repository, "everything", arrays)
    for name in own:
        assert (answer[name].dtype, answer[name].tobytes()) == (own[name].dtype, own[name].tobytes()), name


def test_a_request_without_memory_harms_no_other(server):
    refused = infer(server, "hungry", {"n": np.array([500_000_000])})
    assert refused.status == 500
    assert refused.error.endswith(
        "Failed to allocate 2000000000 bytes of memory. The model's process has used up its limit of 1000 MB: send fewer rows at "
        "a time, or raise SANDBOX_MEMORY_MB in the model's parameters"
    )
    assert infer(server, "hungry", {"n": np.array([10])})["y"].tolist() == [10]


def test_strings(server):
    words = np.array([["né".encode(), b""], [b"a\0b", b"\xff"]], object)
    assert infer(server, "text", {"s": words})["t"].reshape(-1).tolist() == words.reshape(-1).tolist()
    refused = infer(server, "text", {"s": np.array([[b"a\0", b""]], object)})
    assert refused.status == 500
    assert "input 's' has an element that ends with a zero byte" in refused.error
    many = np.full((4, 2), b"", object)
    many[0, 0] = b"x" * (40 << 20)
    assert "Send fewer at once" in infer(server, "text", {"s": many}).error


def test_a_scalar_is_a_tensor_of_one_element(server):
    x = np.array([[True, False]])
    assert infer(server, "scalar", {"x": x, "up": np.array([True])})["y"].tolist() == x.tolist()
    assert not infer(server, "scalar", {"x": x, "up": np.array([False])})["y"].any()


def test_large_outputs_of_known_size(server):
    for rows, names in ((1, ["y", "z", "most"]), (3, ["most", "z"]), (2, ["most"]), (1, ["z", "y"])):
        x = RANDOM.standard_normal((rows, SIDE, SIDE)).astype(np.float32)
        answer = infer(server, "large", {"x": x}, outputs=[{"name": name} for name in names])
        expected = {"y": -x, "z": abs(x), "most": x.max(axis=(1, 2))}
        assert list(answer.outputs) == names
        for name in names:
            assert np.array_equal(answer[name].reshape(expected[name].shape), expected[name])


def test_outputs_of_unknown_size(server):
    """Small and large ones, one after the other."""
    for size in (4, 100_000, 2):
        x = RANDOM.integers(0, 2, size).astype(np.float32)
        assert np.array_equal(infer(server, "counted", {"x": x})["places"], np.nonzero(x))


def test_inputs_that_do_not_fit_together_are_refused_with_the_librarys_reason(server):
    """The server does not know that two dimensions have to be equal."""
    arrays = {name: np.ones((1, size), np.float32) for name, size in (("x", 2), ("y", 3))}
    refused = infer(server, "pair", arrays)
    assert refused.status == 500
    assert "OpenVINO cannot compute this request: " in refused.error
    assert "Exception from" not in refused.error
    assert infer(server, "pair", {**arrays, "y": arrays["x"]})["z"].tolist() == [[2, 2]]
