"""tritonclient's HTTP clients, blocking and asyncio, as they are: what their users do must simply work."""

import asyncio
import json

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.e2e.http.models import SPACED, write_models
from tests.support.served import served


@served()
def server(repository):
    write_models(repository)


class Blocking:
    """The blocking client."""

    module = tritonclient.http

    def __init__(self, url):
        self._client = self.module.InferenceServerClient(url)

    def __getattr__(self, name):
        return getattr(self._client, name)

    def close(self):
        self._client.close()


class Asyncio:
    """The asyncio client, each call run to its end."""

    module = tritonclient.http.aio

    def __init__(self, url):
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._make(url))

    async def _make(self, url):
        return self.module.InferenceServerClient(url)

    def __getattr__(self, name):
        method = getattr(self._client, name)
        return lambda *args, **options: self._runner.run(method(*args, **options))

    def close(self):
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def client(request, server):
    client = request.param(server.url)
    yield client
    client.close()


def tensor(client, name, array, *, datatype=None, binary=True):
    datatypes = {"float32": "FP32", "float16": "FP16", "int64": "INT64", "object": "BYTES", "bool": "BOOL"}
    found = client.module.InferInput(name, list(array.shape), datatype or datatypes[array.dtype.name])
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def output(client, name, *, binary=True):
    return client.module.InferRequestedOutput(name, binary_data=binary)


def refusal(call, *args, **options):
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **options)
    return caught.value.status(), caught.value.message()


# --- health and metadata --------------------------------------------------------------------------------------------


def test_health(client):
    assert client.is_server_live() is True
    assert client.is_server_ready() is True
    assert client.is_model_ready("identity") is True
    assert client.is_model_ready("versions", "3") is True
    assert client.is_model_ready("versions", "2") is False
    assert client.is_model_ready("unknown") is False


def test_metadata(client):
    server = client.get_server_metadata()
    assert server["name"] == "triton"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("batched")
    assert model["inputs"][0] == {"name": "IN_X", "datatype": "FP32", "shape": [-1, 4]}
    assert client.get_model_metadata("versions", "1")["versions"] == ["1"]
    assert refusal(client.get_model_metadata, "unknown") == ("404", "Request for unknown model: 'unknown' is not found")


def test_config(client):
    config = client.get_model_config("raw")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [-1, 2])
    assert client.get_model_config("versions", "3")["name"] == "versions"


# --- tensors --------------------------------------------------------------------------------------------------------

A = np.array([1, 2, 3, 4], dtype=np.float32)
B = np.array([0.5, 0.25, -1, 1e9], dtype=np.float32)


@pytest.mark.parametrize("inputs", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("outputs", [None, (True, True), (True, False), (False, True), (False, False)])
def test_binary_and_json_in_all_combinations(client, inputs, outputs):
    arguments = [tensor(client, "INPUT0", A, binary=inputs[0]), tensor(client, "INPUT1", B, binary=inputs[1])]
    wanted = None
    if outputs is not None:
        wanted = [output(client, f"OUTPUT{index}", binary=binary) for index, binary in enumerate(outputs)]
    result = client.infer("add_sub", arguments, outputs=wanted)
    assert (result.as_numpy("OUTPUT0") == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()


ARRAYS = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], dtype=np.uint8),
    "UINT16": np.array([0, 65535], dtype=np.uint16),
    "UINT32": np.array([0, 2**32 - 1], dtype=np.uint32),
    "UINT64": np.array([0, 2**64 - 1], dtype=np.uint64),
    "INT8": np.array([-128, 127], dtype=np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], dtype=np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], dtype=np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], dtype=np.int64),
    "FP32": np.array([0.1, -3e38], dtype=np.float32),
    "FP64": np.array([0.1, -1e308]),
    "BYTES": np.array(["ünïcödé", "", "z"], dtype=object),
}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize(("datatype", "array"), ARRAYS.items(), ids=ARRAYS)
def test_every_datatype(client, datatype, array, binary_in, binary_out):
    argument = tensor(client, datatype, array, datatype=datatype, binary=binary_in)
    result = client.infer("types", [argument], outputs=[output(client, datatype, binary=binary_out)])
    found = result.as_numpy(datatype)
    wanted = np.array([text.encode() for text in array], dtype=object) if datatype == "BYTES" and binary_out else array
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision(client, datatype):
    # What stands for BF16 in numpy, which has none, differs between the client's releases.
    array = np.array([0.5, -256, 1.5], dtype=triton_to_np_dtype(datatype))
    argument = tensor(client, datatype, array, datatype=datatype)
    found = client.infer("types", [argument], outputs=[output(client, datatype)]).as_numpy(datatype)
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()


def test_bytes_that_are_no_text(client):
    array = np.array([b"\xff\0", b"", bytes(range(256)), b"x" * 100_000], dtype=np.object_)
    result = client.infer("types", [tensor(client, "BYTES", array)], outputs=[output(client, "BYTES")])
    assert result.as_numpy("BYTES").tolist() == array.tolist()


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("shape", [[0], [3, 0], [0, 4, 2]])
def test_zero_size(client, binary, shape):
    model = {1: "identity", 2: "raw_plane"}.get(len(shape))
    array = np.zeros(shape, dtype=np.float32)
    if model is None:
        assert "unexpected shape" in refusal(client.infer, "identity", [tensor(client, "IN", array)])[1]
        return
    arguments = [tensor(client, "IN", array, binary=binary)]
    result = client.infer(model, arguments, outputs=[output(client, "OUT", binary=binary)])
    found = result.as_numpy("OUT")
    assert found is None or list(found.shape) == shape
    assert result.get_output("OUT")["shape"] == shape


def test_batches(client):
    array = np.arange(32, dtype=np.float32).reshape(8, 4)
    arguments = [tensor(client, "IN_X", array), tensor(client, "IN_Y", array[:, :1])]
    result = client.infer("batched", arguments)
    assert (result.as_numpy("OUT_X") == array).all()
    assert (result.as_numpy("OUT_Y") == array[:, :1]).all()


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # aiohttp about its caller
def test_large_tensor(client):
    array = np.random.default_rng(3).random(4_000_000, dtype=np.float32)
    result = client.infer("identity", [tensor(client, "IN", array)], outputs=[output(client, "OUT")])
    assert (result.as_numpy("OUT") == array).all()


# --- ids, parameters, versions, names -------------------------------------------------------------------------------


def command(client, **members):
    return tensor(client, "COMMAND", np.array([json.dumps(members)], dtype=object))


def seen(result):
    return json.loads(result.as_numpy("SEEN")[0])


def test_request_id(client):
    result = client.infer("probe", [command(client)], request_id="my id")
    assert result.get_response()["id"] == "my id"
    assert seen(result)["id"] == "my id"
    assert "id" not in client.infer("probe", [command(client)]).get_response()


def test_parameters(client):
    parameters = {"text": "ü", "count": 3, "flag": True}
    result = client.infer("probe", [command(client, parameters={"answer": 42})], parameters=parameters)
    assert seen(result)["parameters"] == parameters
    assert result.get_response()["parameters"] == {"answer": 42}


def test_sequence_priority_and_timeout(client):
    result = client.infer(
        "probe",
        [command(client)],
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        priority=1,
        timeout=60_000_000,
    )
    about = seen(result)
    assert (about["correlation_id"], about["flags"], about["timeout"]) == (7, 3, 60_000_000)
    assert seen(client.infer("probe", [command(client)], sequence_id="text"))["correlation_id"] == "text"


@pytest.mark.parametrize(("version", "answered"), [("", "3"), ("1", "1"), ("3", "3")])
def test_versions(client, version, answered):
    result = client.infer("versions", [tensor(client, "IN", A)], model_version=version)
    assert result.get_response()["model_version"] == answered


def test_name_that_must_be_quoted(client):
    assert client.is_model_ready(SPACED)
    result = client.infer(SPACED, [tensor(client, "IN", A)])
    assert result.get_response()["model_name"] == SPACED
    assert (result.as_numpy("OUT") == A).all()


def test_headers_and_query(client):
    result = client.infer("identity", [tensor(client, "IN", A)], headers={"X-Trace": "1"}, query_params={"a": "b"})
    assert (result.as_numpy("OUT") == A).all()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors(client):
    one = [tensor(client, "IN", A)]
    assert refusal(client.infer, "unknown", one) == ("404", "Request for unknown model: 'unknown' is not found")
    assert refusal(client.infer, "versions", one, model_version="2") == (
        "404",
        "Request for unknown model: 'versions' version 2 is not found",
    )
    status, message = refusal(client.infer, "add_sub", [tensor(client, "INPUT0", A)], request_id="7")
    assert status == "400"
    assert message.startswith("[request id: 7] expected 2 inputs but got 1 inputs for model 'add_sub'.")
    assert refusal(client.infer, "identity", one, outputs=[output(client, "X")]) == (
        "400",
        "unexpected inference output 'X' for model 'identity'. Its outputs are ['OUT']",
    )
    assert refusal(client.infer, "probe", [command(client, error="gone", code="NOT_FOUND")]) == ("404", "gone")
    status, message = refusal(client.infer, "probe", [command(client, **{"raise": "oh no"})])
    assert status == "500"
    assert "ValueError: oh no" in message


# --- each client's own ----------------------------------------------------------------------------------------------


def test_many_at_once_with_the_blocking_client(server):
    client = tritonclient.http.InferenceServerClient(server.url, concurrency=8)
    holder = Blocking.__new__(Blocking)
    arrays = [np.full(1000, number, dtype=np.float32) for number in range(40)]
    pending = [client.async_infer("identity", [tensor(holder, "IN", array)]) for array in arrays]
    for array, each in zip(arrays, pending, strict=True):
        assert (each.get_result().as_numpy("OUT") == array).all()
    client.close()


def test_many_at_once_with_the_asyncio_client(server):
    holder = Asyncio.__new__(Asyncio)
    arrays = [np.full(1000, number, dtype=np.float32) for number in range(40)]

    async def ask():
        async with tritonclient.http.aio.InferenceServerClient(server.url) as client:
            return await asyncio.gather(*(client.infer("identity", [tensor(holder, "IN", array)]) for array in arrays))

    for array, result in zip(arrays, asyncio.run(ask()), strict=True):
        assert (result.as_numpy("OUT") == array).all()


def test_bodies_made_and_read_apart_from_the_client(server):
    """For those who send with a library of their own."""
    client = tritonclient.http.InferenceServerClient
    holder = Blocking.__new__(Blocking)
    body, length = client.generate_request_body([tensor(holder, "IN", A)], outputs=[output(holder, "OUT")])
    reply = server.infer("identity", body, {"Inference-Header-Content-Length": str(length)})
    cut = int(reply.headers["inference-header-content-length"])
    result = client.parse_response_body(reply.body, header_length=cut)
    assert (result.as_numpy("OUT") == A).all()
