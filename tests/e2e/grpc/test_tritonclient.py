"""tritonclient's gRPC clients, blocking and asyncio, as they are: tensors, fields, parameters, classes and errors."""

import json

import numpy as np
import pytest
from tritonclient.grpc import InferRequestedOutput
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.e2e.grpc.clients import Asyncio, Blocking, classes, infer, parameters, tensor
from tests.e2e.http.models import DATATYPES, SPACED, write_models
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

LABELLED = """
    backend: "python"
    input { name: "IN" data_type: TYPE_FP32 dims: 4 }
    output { name: "OUT" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }
    max_batch_size: 4
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    repository = tmp_path_factory.mktemp("grpc_clients") / "models"
    write_models(repository)
    labelled = write_model(repository, "labelled", IDENTITY, LABELLED)
    (labelled / "labels.txt").write_text("zero\nun\ndos\ndrei\n")
    for datatype in ("FP16", "BOOL", "STRING"):
        write_model(repository, f"no_{datatype}", IDENTITY, identity_config(f"TYPE_{datatype}"))
    with serving(repository) as server:
        yield server.grpc_url


@pytest.fixture(scope="module", params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def client(request, url):
    made = request.param(url)
    yield made
    made.close()


def refusal(client, *arguments, **options):
    with pytest.raises(InferenceServerException) as caught:
        infer(client, *arguments, **options)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


# --- tensors ---

A = np.array([1, 2, 3, 4], dtype=np.float32)
SCORES = np.array([[0.1, 5, -2, 3], [9, 8, 7, 6]], np.float32)
EXTREMES = {
    "BOOL": [True, False],
    "FP16": [0.5, -65504],
    "BF16": [0.5, -256],
    "FP32": [np.float32(0.1), np.float32("-inf")],
    "FP64": [0.1, -1e308],
    "BYTES": ["ünïcödé".encode(), bytes(range(256))],
}


def extremes(datatype):
    if datatype in EXTREMES:
        return np.array(EXTREMES[datatype], dtype=triton_to_np_dtype(datatype))
    info = np.iinfo(triton_to_np_dtype(datatype))
    return np.array([info.min, info.max], dtype=info.dtype)


@pytest.mark.parametrize("size", ["some", "none"])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype(client, datatype, size):
    array = extremes(datatype)[: None if size == "some" else 0]
    result = infer(client, "types", [tensor(datatype, array, datatype)])
    found = result.as_numpy(datatype)
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()
    assert [output.name for output in result.get_response().outputs] == [datatype]


def test_inputs_that_are_optional(client):
    every = [tensor(datatype, extremes(datatype), datatype) for datatype in DATATYPES]
    for chosen in (every, every[::2], every[:1], []):
        result = infer(client, "types", chosen)
        assert [output.name for output in result.get_response().outputs] == [each.name() for each in chosen]


@pytest.mark.parametrize("shape", [[3, 0], [0, 4], [2, 3]])
def test_shapes_with_and_without_elements(client, shape):
    found = infer(client, "raw_plane", [tensor("IN", np.ones(shape, np.float32))]).as_numpy("OUT")
    assert found.tolist() == np.ones(shape).tolist()
    assert list(found.shape) == shape


def test_requested_outputs_and_batches(client):
    array = np.arange(32, dtype=np.float32).reshape(8, 4)
    arguments = [tensor("IN_X", array), tensor("IN_Y", array[:, :1])]
    result = infer(client, "batched", arguments, outputs=[InferRequestedOutput("OUT_Y")])
    assert result.as_numpy("OUT_X") is None
    assert (result.as_numpy("OUT_Y") == array[:, :1]).all()
    assert (
        refusal(client, "batched", [tensor("IN_X", array[:3]), tensor("IN_Y", array[:2, :1])])[0] == "INVALID_ARGUMENT"
    )


# --- ids, parameters, versions, names ---


def command(**members):
    return [tensor("COMMAND", np.array([json.dumps(members)], dtype=object), "BYTES")]


def seen(result):
    return json.loads(result.as_numpy("SEEN")[0])


def test_request_id(client):
    result = infer(client, "probe", command(), request_id="ü id")
    assert (result.get_response().id, seen(result)["id"]) == ("ü id", "ü id")
    assert infer(client, "probe", command()).get_response().id == ""


def test_parameters_to_the_model_and_from_it(client):
    given = {"text": "ü", "count": -3, "flag": True}
    told = {"answer": 42, "word": "ja", "yes": False}
    result = infer(client, "probe", command(parameters=told), parameters=given)
    assert seen(result)["parameters"] == given
    assert parameters(result) == told


@pytest.mark.parametrize(("sequence_id", "id_seen"), [(7, 7), ("text", "text")])
def test_fields_of_sequences_priority_and_timeout(client, sequence_id, id_seen):
    options = {"sequence_id": sequence_id, "sequence_start": True, "sequence_end": True}
    about = seen(infer(client, "probe", command(), priority=1, timeout=60_000_000, **options))
    assert (about["correlation_id"], about["flags"], about["timeout"]) == (id_seen, 3, 60_000_000)


@pytest.mark.parametrize(("version", "answered"), [("", "3"), ("1", "1"), ("3", "3")])
def test_versions(client, version, answered):
    result = infer(client, "versions", [tensor("IN", A)], model_version=version)
    assert result.get_response().model_version == answered


def test_any_name(client):
    result = infer(client, SPACED, [tensor("IN", A)])
    assert result.get_response().model_name == SPACED
    assert client.call("is_model_ready", SPACED) is True


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_metadata_and_compression(client, compression):
    array = np.arange(100_000, dtype=np.float32)
    options = {"headers": {"x-trace": "1"}, "compression_algorithm": compression}
    assert (infer(client, "identity", [tensor("IN", array)], **options).as_numpy("OUT") == array).all()


# --- classification ---


def test_classes_with_their_labels(client):
    result = infer(client, "labelled", [tensor("IN", SCORES)], outputs=classes("OUT", 2))
    assert result.as_numpy("OUT").tolist() == [
        [b"5.000000:1:un", b"3.000000:3:drei"],
        [b"9.000000:0:zero", b"8.000000:1:un"],
    ]
    assert (result.get_output("OUT").datatype, list(result.get_output("OUT").shape)) == ("BYTES", [2, 2])


def test_classes_without_labels_and_more_than_there_are(client):
    result = infer(client, "identity", [tensor("IN", A)], outputs=classes("OUT", 100))
    assert result.as_numpy("OUT").tolist() == [b"4.000000:3", b"3.000000:2", b"2.000000:1", b"1.000000:0"]


@pytest.mark.parametrize("datatype", ["FP16", "BOOL", "STRING"])
def test_datatypes_without_classes(client, datatype):
    name = "BYTES" if datatype == "STRING" else datatype
    given = [tensor("IN", extremes(name), name)]
    status, message = refusal(client, f"no_{datatype}", given, outputs=classes("OUT", 1))
    assert status == "INVALID_ARGUMENT"
    assert message.startswith(f"class result not available for output due to unsupported type '{name}'")


# --- errors ---


def test_errors(client):
    one = [tensor("IN", A)]
    unknown = ("NOT_FOUND", "Request for unknown model: 'unknown' is not found")
    assert refusal(client, "unknown", one) == unknown
    assert refusal(client, "versions", one, model_version="2") == (
        "NOT_FOUND",
        "Request for unknown model: 'versions' version 2 is not found",
    )
    status, message = refusal(client, "add_sub", [tensor("INPUT0", A)], request_id="7")
    assert status == "INVALID_ARGUMENT"
    assert message.startswith("[request id: 7] expected 2 inputs but got 1 inputs for model 'add_sub'.")
    assert refusal(client, "identity", one, outputs=[InferRequestedOutput("X")]) == (
        "INVALID_ARGUMENT",
        "unexpected inference output 'X' for model 'identity'. Its outputs are ['OUT']",
    )
    assert refusal(client, "probe", command(error="gone", code="NOT_FOUND")) == ("NOT_FOUND", "gone")
    status, message = refusal(client, "probe", command(**{"raise": "oh no"}))
    assert status == "INTERNAL"
    assert "ValueError: oh no" in message


def test_the_same_on_a_stream(client):
    """Fields, parameters, classes and errors are read by one code for both methods; a stream shows that it is."""
    requests = [
        {"model_name": "probe", "inputs": command(parameters={"a": 1}), "request_id": "p", "parameters": {"k": "v"}},
        {"model_name": "labelled", "inputs": [tensor("IN", SCORES[:1])], "outputs": classes("OUT", 1)},
        {"model_name": "versions", "inputs": [tensor("IN", A)], "model_version": "2"},
        {"model_name": "types", "inputs": [tensor("BF16", extremes("BF16"), "BF16")]},
        {"model_name": "versions", "inputs": [tensor("IN", A)], "model_version": "1"},
    ]
    probe, labelled, missing, types, version = client.stream(requests)
    assert seen(probe)["parameters"] == {"k": "v"}
    assert parameters(probe) == {"a": 1, "triton_final_response": True}
    assert labelled.as_numpy("OUT").tolist() == [[b"5.000000:1:un"]]
    assert missing.message() == "Request for unknown model: 'versions' version 2 is not found"
    assert types.as_numpy("BF16").tolist() == EXTREMES["BF16"]
    assert version.get_response().model_version == "1"
