"""The models of the reference's quick start, by their names and configurations, with small files of our own: every one
loads and answers."""

import queue
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from tests.support.served import served

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx", reason="the package onnx makes the models")

from onnx import TensorProto, helper

from tests.backends.onnxruntime import graphs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PLATFORM = 'platform: "onnxruntime_onnx"\n'
HAS_TENSORFLOW = find_spec("tensorflow") is not None


def tensors(kind, data_type, dims, *names, more=""):
    entries = ", ".join(f'{{ name: "{name}" data_type: {data_type} dims: [ {dims} ] {more} }}' for name in names)
    return f"{kind} [ {entries} ]\n"


def control(name, kind, values="int32_false_true: [ 0, 1 ]"):
    return f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }}'


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def add_model(models: Path, name, config, nodes, inputs, outputs, initial=()):
    graphs.save(models / name / "1" / "model.onnx", nodes, inputs, outputs, initial=initial)
    (models / name / "config.pbtxt").write_text(f'name: "{name}"\n{PLATFORM}{config}')


def add_arithmetic(models, name, data_type, element, nodes=None):
    nodes = nodes or [node("Add", "INPUT0 INPUT1", "OUTPUT0"), node("Sub", "INPUT0 INPUT1", "OUTPUT1")]
    config = "max_batch_size: 8\n" + tensors("input", data_type, 16, "INPUT0", "INPUT1")
    config += tensors("output", data_type, 16, "OUTPUT0", "OUTPUT1")
    inputs, outputs = ([(f"{kind}{place}", element, ["n", 16]) for place in range(2)] for kind in ("INPUT", "OUTPUT"))
    add_model(models, name, config, nodes, inputs, outputs)


def add_sequence(models, name, batching, nodes, controls):
    config = f"max_batch_size: 8\nsequence_batching {{ max_sequence_idle_microseconds: 5000000 {batching} }}\n"
    config += tensors("input", "TYPE_INT32", 1, "INPUT") + tensors("output", "TYPE_INT32", 1, "OUTPUT")
    config += "instance_group [ { kind: KIND_CPU } ]\n"
    inputs = [(each, TensorProto.INT32, ["n", 1]) for each in ("INPUT", "START", "READY")]
    add_model(models, name, config, nodes, [*inputs, *controls], [("OUTPUT", TensorProto.INT32, ["n", 1])])


def add_images(models):
    random = np.random.default_rng(7)
    config = "max_batch_size: 0\n" + tensors(
        "input", "TYPE_FP32", "3, 224, 224", "data_0", more="format: FORMAT_NCHW reshape { shape: [ 1, 3, 224, 224 ] }"
    )
    config += tensors(
        "output",
        "TYPE_FP32",
        1000,
        "fc6_1",
        more='reshape { shape: [ 1, 1000, 1, 1 ] } label_filename: "densenet_labels.txt"',
    )
    add_model(
        models,
        "densenet_onnx",
        config,
        [node("GlobalAveragePool", "data_0", "mean"), node("Conv", "mean weights", "fc6_1")],
        [("data_0", TensorProto.FLOAT, [1, 3, 224, 224])],
        [("fc6_1", TensorProto.FLOAT, [1, 1000, 1, 1])],
        [graphs.initial("weights", random.random((1000, 3, 1, 1), np.float32))],
    )
    (models / "densenet_onnx" / "densenet_labels.txt").write_text("".join(f"animal {n}\n" for n in range(1000)))
    scores = "InceptionV3/Predictions/Softmax"
    config = "max_batch_size: 128\n" + tensors("input", "TYPE_FP32", "299, 299, 3", "input", more="format: FORMAT_NHWC")
    config += tensors("output", "TYPE_FP32", 1001, scores, more='label_filename: "inception_labels.txt"')
    add_model(
        models,
        "inception_onnx",
        config,
        [
            node("ReduceMean", "input", "mean", axes=[1, 2], keepdims=0),
            node("MatMul", "mean weights", "product"),
            node("Softmax", "product", scores),
        ],
        [("input", TensorProto.FLOAT, ["n", 299, 299, 3])],
        [(scores, TensorProto.FLOAT, ["n", 1001])],
        [graphs.initial("weights", random.random((3, 1001), np.float32))],
    )
    (models / "inception_onnx" / "inception_labels.txt").write_text("".join(f"thing {n}\n" for n in range(1001)))


def add_savedmodel(models):
    from tests.backends.tensorflow import networks

    networks.save_identity(models / "simple_identity" / "1" / "model.savedmodel")
    config = 'name: "simple_identity"\nplatform: "tensorflow_savedmodel"\nmax_batch_size: 8\n'
    config += tensors("input", "TYPE_STRING", -1, "INPUT0") + tensors("output", "TYPE_STRING", -1, "OUTPUT0")
    (models / "simple_identity" / "config.pbtxt").write_text(config)


@served()
def server(models):
    add_images(models)
    add_arithmetic(models, "simple", "TYPE_INT32", TensorProto.INT32)
    add_arithmetic(models, "simple_int8", "TYPE_INT8", TensorProto.INT8)
    add_arithmetic(
        models,
        "simple_string",
        "TYPE_STRING",
        TensorProto.STRING,
        [
            *(node("Cast", f"INPUT{place}", f"number{place}", to=TensorProto.INT32) for place in range(2)),
            node("Add", "number0 number1", "sum"),
            node("Sub", "number0 number1", "difference"),
            node("Cast", "sum", "OUTPUT0", to=TensorProto.STRING),
            node("Cast", "difference", "OUTPUT1", to=TensorProto.STRING),
        ],
    )
    plus_start = [node("Add", "INPUT START", "sum")]
    controls = f"{control('START', 'START')}, {control('READY', 'READY')}"
    add_sequence(
        models,
        "simple_sequence",
        f"direct {{}} control_input [ {controls} ]",
        [*plus_start, node("Mul", "sum READY", "OUTPUT")],
        (),
    )
    more = f"{control('END', 'END')}, {control('CORRID', 'CORRID', 'data_type: TYPE_UINT64')}"
    add_sequence(
        models,
        "simple_dyna_sequence",
        f"oldest {{ max_candidate_sequences: 4 preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 0 }} "
        f"control_input [ {controls}, {more} ]",
        [
            *plus_start,
            node("Cast", "CORRID", "id", to=TensorProto.INT32),
            node("Add", "START END", "edges"),
            node("Mul", "edges id", "mark"),
            node("Add", "sum mark", "marked"),
            node("Mul", "marked READY", "OUTPUT"),
        ],
        [("END", TensorProto.INT32, ["n", 1]), ("CORRID", TensorProto.UINT64, ["n", 1])],
    )
    if HAS_TENSORFLOW:
        add_savedmodel(models)


@pytest.fixture
def client(server):
    with closing(http_client.InferenceServerClient(server.url)) as client:
        yield client


def an_input(name, array, data_type):
    tensor = http_client.InferInput(name, list(array.shape), data_type)
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.mark.parametrize(
    ("name", "data_type", "dtype"),
    [("simple", "INT32", np.int32), ("simple_int8", "INT8", np.int8), ("simple_string", "BYTES", np.object_)],
)
def test_arithmetic(client, name, data_type, dtype):
    numbers, ones = np.arange(16).reshape(1, 16), np.ones((1, 16), int)
    sent = [each.astype(str).astype(object) if dtype is np.object_ else each.astype(dtype) for each in (numbers, ones)]
    inputs = [an_input(f"INPUT{place}", each, data_type) for place, each in enumerate(sent)]
    result = client.infer(name, inputs)
    found = [result.as_numpy(f"OUTPUT{place}").astype(int).tolist() for place in range(2)]
    assert found == [(numbers + ones).tolist(), (numbers - ones).tolist()]


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "output", "label"),
    [
        ("densenet_onnx", "data_0", (3, 224, 224), "fc6_1", "animal"),
        ("inception_onnx", "input", (1, 299, 299, 3), "InceptionV3/Predictions/Softmax", "thing"),
    ],
)
def test_classification(client, name, tensor, shape, output, label):
    picture = an_input(tensor, np.random.default_rng(3).random(shape, np.float32), "FP32")
    best = client.infer(name, [picture], outputs=[http_client.InferRequestedOutput(output, class_count=3)])
    scores = client.infer(name, [picture], outputs=[http_client.InferRequestedOutput(output)]).as_numpy(output)
    top = np.argsort(scores.reshape(-1))[::-1][:3]
    assert [text.decode().split(":")[1:] for text in best.as_numpy(output).reshape(-1)] == [
        [str(place), f"{label} {place}"] for place in top
    ]


@pytest.mark.parametrize("name", ["simple_sequence", "simple_dyna_sequence"])
def test_sequences(server, name):
    """Two sequences at a time: the model learns from the control tensors where one begins and ends, and its number."""
    values, ids = [11, 7, 5, 3, 2, 0, 1], (1001, 1002)
    answers = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for place, value in enumerate(values):
            for sequence in ids:
                tensor = grpc_client.InferInput("INPUT", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.array([[value]], np.int32))
                client.async_stream_infer(
                    name,
                    [tensor],
                    request_id=f"{sequence} {place}",
                    sequence_id=sequence,
                    sequence_start=place == 0,
                    sequence_end=place == len(values) - 1,
                )
        found = {}
        for _ in range(len(values) * len(ids)):
            result = answers.get(timeout=60)
            assert not isinstance(result, Exception), result
            found[result.get_response().id] = result.as_numpy("OUTPUT").item()
        client.stop_stream()
    edges = {0: 1, len(values) - 1: 1}
    marks = {sequence: sequence if "dyna" in name else 0 for sequence in ids}
    assert found == {
        f"{sequence} {place}": value + (place == 0) + edges.get(place, 0) * marks[sequence]
        for place, value in enumerate(values)
        for sequence in ids
    }


def test_what_clients_see_of_a_sequence_model(client):
    metadata = client.get_model_metadata("simple_dyna_sequence")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"]
    assert client.get_model_config("simple_sequence")["input"][0]["name"] == "INPUT"


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow is not installed")
def test_a_savedmodel(client):
    text = np.array([["one", "two"]], object)
    assert client.infer("simple_identity", [an_input("INPUT0", text, "BYTES")]).as_numpy("OUTPUT0").tolist() == [
        [b"one", b"two"]
    ]
