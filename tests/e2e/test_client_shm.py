"""System shared memory of clients: tritonclient's four clients, and every kind of model, without a tensor byte on the
wire."""

import asyncio
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, shared_memory

from pybackend_wire.bytes_tensor import encode_elements
from tests.support.client_memory import FLAG, client_region, document
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.served import served

pytestmark = [pytest.mark.spec("srv-H29"), pytest.mark.spec("srv-G18")]

LARGE = 100_000
"""Elements of a tensor that is too large for a frame."""

VIEWER = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            seen = np.array([array.flags.writeable, array[0], array[-1]], np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array), pb_utils.Tensor("SEEN", seen)]))
        return answers
"""
STREAMER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = request.inputs()[0].as_numpy()
            for factor in (1, 2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * factor)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.Tensor("IN", request.inputs()[0].as_numpy())
            inner = pb_utils.InferenceRequest(model_name="plain", requested_output_names=["OUT"], inputs=[tensor])
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", inner.exec().output_tensors()[0].as_numpy())]))
        return answers
"""
COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        self.count += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + self.count)]) for r in requests]
"""
STATEFUL = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given, state = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "STATE_IN"))
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", given + state), pb_utils.Tensor("STATE_OUT", given + state)]))
        return answers
"""
ANY = "TYPE_FP32", [-1]
CHAIN = f"""
platform: "ensemble"
input [ {tensors(IN=ANY)} ]
output [ {tensors(OUT=ANY, MIDDLE=ANY)} ]
ensemble_scheduling {{ step [
  {{ model_name: "plain" model_version: -1 input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "MIDDLE" }} }},
  {{ model_name: "plain" model_version: -1 input_map {{ key: "IN" value: "MIDDLE" }} output_map {{ key: "OUT" value: "OUT" }} }}
] }}
"""
STATES = """
sequence_batching {
  state [ { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ -1 ]
            initial_state: { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true name: "zeros" } } ]
}
"""


@served(flags=(FLAG, "--cache-config=local,size=10000000"))
def server(repository):
    two = "instance_group [ { count: 2 kind: KIND_CPU } ]"
    view = 'parameters { key: "CLIENT_MEMORY" value: { string_value: "view" } }'
    write_model(repository, "plain", IDENTITY, identity_config(extra=two))
    write_model(repository, "strings", IDENTITY, identity_config("TYPE_STRING"))
    pair = tensors(IN0=("TYPE_STRING", [-1]), IN1=("TYPE_STRING", [-1]))
    out = tensors(OUT=("TYPE_STRING", [-1]))
    write_model(repository, "two_strings", IDENTITY, f'backend: "python" input [ {pair} ] output [ {out} ]')
    seen = f"output [ {tensors(SEEN=('TYPE_FP32', [3]))} ]"
    write_model(repository, "viewer", VIEWER, identity_config(extra=f"{view} {seen}"))
    write_model(repository, "batched", IDENTITY, identity_config(extra="max_batch_size: 4 dynamic_batching { }"))
    write_model(repository, "streamer", STREAMER, identity_config(extra="model_transaction_policy { decoupled: true }"))
    write_model(repository, "caller", CALLER, identity_config())
    write_model(repository, "cached", COUNTING, identity_config(extra="response_cache { enable: true }"))
    write_model(repository, "stateful", STATEFUL, identity_config(extra=STATES))
    write_model(repository, "chain", None, CHAIN)


class Blocking:
    """A blocking client."""

    def __init__(self, module, url):
        self.module = module
        self._client = module.InferenceServerClient(url)

    def __getattr__(self, name):
        return getattr(self._client, name)


class Asyncio:
    """A client of asyncio, each call run to its end."""

    def __init__(self, module, url):
        self.module = module
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


@pytest.fixture(params=["http", "http.aio", "grpc", "grpc.aio"])
def client(request, server):
    protocol, _, is_aio = request.param.partition(".")
    module = getattr(tritonclient, protocol)
    made = (Asyncio if is_aio else Blocking)(
        module.aio if is_aio else module, server.url if protocol == "http" else server.grpc_url
    )
    yield made
    made.close()


@contextmanager
def registered(client, name, nbytes):
    """A region that tritonclient's own helpers make."""
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", nbytes)
    try:
        client.register_system_shared_memory(name, f"/{name}", nbytes)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def regions_of(client):
    """The registered regions as the client sees them, in one form for both protocols."""
    status = client.get_system_shared_memory_status()
    if isinstance(status, list):
        return status
    return [
        {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in status.regions.values()
    ]


@pytest.mark.parametrize("count", [4, LARGE], ids=["small", "large"])
def test_clients_of_every_kind(client, count):
    module, nbytes = client.module, 4 * count
    with registered(client, "shm_in", nbytes) as source, registered(client, "shm_out", 2 * nbytes) as target:
        assert {"name": "shm_out", "key": "/shm_out", "offset": 0, "byte_size": 2 * nbytes} in regions_of(client)
        sent = np.arange(count, dtype=np.float32)
        shared_memory.set_shared_memory_region(source, [sent])
        given = module.InferInput("IN", [count], "FP32")
        given.set_shared_memory("shm_in", nbytes)
        wanted = module.InferRequestedOutput("OUT")
        wanted.set_shared_memory("shm_out", nbytes, offset=nbytes)
        for _ in range(3):
            result = client.infer("plain", [given], outputs=[wanted])
        np.testing.assert_array_equal(
            shared_memory.get_contents_as_numpy(target, np.float32, [count], offset=nbytes), sent
        )
        described = result.get_output("OUT")
        assert (list(described["shape"]) if isinstance(described, dict) else list(described.shape)) == [count]
        # The output alone, and the input alone.
        plain = module.InferInput("IN", [count], "FP32")
        plain.set_data_from_numpy(sent + 1)
        client.infer("plain", [plain], outputs=[wanted])
        np.testing.assert_array_equal(
            shared_memory.get_contents_as_numpy(target, np.float32, [count], offset=nbytes), sent + 1
        )
        result = client.infer("plain", [given], outputs=[module.InferRequestedOutput("OUT")])
        np.testing.assert_array_equal(result.as_numpy("OUT"), sent)


@pytest.mark.spec("srv-H30")
def test_refusals_of_every_kind(client):
    def refused(what, *arguments, **options):
        with pytest.raises(InferenceServerException) as raised:
            getattr(client, what)(*arguments, **options)
        return raised.value.message()

    module = client.module
    with registered(client, "taken", 64):
        again = refused("register_system_shared_memory", "taken", "/taken", 64)
        assert again.startswith("shared memory region 'taken' already in manager")
    missing = refused("register_system_shared_memory", "r", "/pybackend_missing", 64)
    assert missing.startswith("Unable to open shared memory region: '/pybackend_missing'")
    unknown = refused("get_system_shared_memory_status", "r")
    assert unknown.startswith("Unable to find system shared memory region: 'r'")
    client.unregister_system_shared_memory("r")  # is no error
    cuda = client.get_cuda_shared_memory_status()
    assert not (cuda if isinstance(cuda, list) else cuda.regions)
    no_gpu = refused("register_cuda_shared_memory", "r", b"aGFuZGxl", 0, 64)
    assert no_gpu == NO_GPU
    client.unregister_cuda_shared_memory("r")

    def given(region, nbytes, offset=0):
        tensor = module.InferInput("IN", [4], "FP32")
        tensor.set_shared_memory(region, nbytes, offset=offset)
        return [tensor]

    assert refused("infer", "plain", given("r", 16)).startswith("Unable to find shared memory region: 'r'")
    with registered(client, "small", 16):
        for offset, size, text in (
            (16, 16, "Invalid offset for shared memory region: 'small'"),
            (4, 16, "Invalid offset + byte size for shared memory region: 'small'"),
        ):
            assert refused("infer", "plain", given("small", size, offset)).startswith(text)
        wanted = module.InferRequestedOutput("OUT")
        wanted.set_shared_memory("small", 12)
        assert refused("infer", "plain", given("small", 16), outputs=[wanted]).startswith(
            "shared memory size specified with the request for output 'OUT' (12 bytes) should be at least 16 bytes to hold "
            "the results"
        )
        mismatch = "input byte size mismatch for input 'IN' for model 'plain'. Expected 16, got 12"
        assert mismatch in refused("infer", "plain", given("small", 12))


NO_GPU = "failed to register CUDA shared memory region: 'r', GPUs not supported. Register system shared memory instead"
REGISTER = "/v2/systemsharedmemory/region/r/register"

BAD_REGISTRATIONS = {
    "no key": ({"byte_size": 64}, 400, "Shared memory register request has no 'key' field"),
    "no size": ({"key": "/k"}, 400, "Shared memory register request has no 'byte_size' field"),
    "a key that is no text": (
        {"key": 1, "byte_size": 64},
        500,
        "Unable to parse 'key': attempt to access JSON non-string",
    ),
    "a negative size": ({"key": "/k", "byte_size": -1}, 500, "Unable to parse 'byte_size'"),
    "only slashes": (
        {"key": "//", "byte_size": 64},
        400,
        "cannot register shared memory region 'r' - invalid shm key '//'",
    ),
    "the server's own prefix": (
        {"key": "/triton_python_backend_shm_region_1", "byte_size": 64},
        400,
        "cannot register shared memory region 'r' with key '/triton_python_backend_shm_region_1' as the key contains the "
        "reserved prefix 'triton_python_backend_shm_region_'",
    ),
    "a way up": ({"key": "/../etc/hosts", "byte_size": 1}, 500, "Unable to open shared memory region: '/../etc/hosts'"),
    "the directory": ({"key": "..", "byte_size": 1}, 500, "Unable to open shared memory region: '..'"),
    "two slashes": (
        {"key": "//k", "byte_size": 1},
        500,
        "Unable to open shared memory region: '//k': the name of a shared memory",
    ),
    "a zero byte": ({"key": "a\0b", "byte_size": 1}, 500, "Unable to open shared memory region: 'a\0b'"),
    "a long key": ({"key": "k" * 256, "byte_size": 1}, 500, "Unable to open shared memory region: 'kkk"),
    "no object": (
        {"key": "/pybackend_none", "byte_size": 1},
        500,
        "Unable to open shared memory region: '/pybackend_none'",
    ),
}


@pytest.mark.parametrize("name", BAD_REGISTRATIONS)
def test_registrations_that_are_refused(server, name):
    body, status, text = BAD_REGISTRATIONS[name]
    reply = server.request("POST", REGISTER, body)
    assert (reply.status, reply.error[: len(text)]) == (status, text)


def test_sizes_beyond_the_object(server):
    with client_region(None, 4096) as region:
        for members in ({"byte_size": 4097}, {"offset": 1}, {"offset": 4096, "byte_size": 1}, {"byte_size": 0}):
            reply = region.register(server, **members)
            text = f"failed to register shared memory region '{region.name}': invalid args"
            assert (reply.status, reply.error[: len(text)]) == (400, text)


def test_the_routes(server):
    with client_region(None, 8192) as region:
        assert region.register(server, offset=4096, byte_size=64).status == 200
        row = {"name": region.name, "key": region.key, "offset": 4096, "byte_size": 64}
        base = "/v2/systemsharedmemory"
        assert row in server.get(f"{base}/status").json
        assert server.get(f"{base}/region/{region.name}/status").json == [row]
        wrong_kind = server.get(f"/v2/cudasharedmemory/region/{region.name}/status")
        assert (wrong_kind.status, wrong_kind.error) == (
            404,
            f"The region named '{region.name}' is registered as system shared memory, not CUDA shared memory",
        )
        assert (
            server.get("/v2/cudasharedmemory/region/r/status").error == "Unable to find cuda shared memory region: 'r'"
        )
        assert server.get("/v2/cudasharedmemory/status").json == []
        region.array(offset=4096, count=4)[:] = 7
        reply = server.infer("plain", document([4], region.part(16), None))
        assert reply.json["outputs"][0]["data"] == [7, 7, 7, 7]
        assert server.request("POST", f"{base}/unregister").status == 200
        assert server.get(f"{base}/status").json == []
        assert server.infer("plain", document([4], region.part(16), None)).status == 404
        # A key without a slash names the same object.
        assert region.register(server, key=region.name).status == 200
        assert region.unregister(server).status == 200


def test_an_output_in_a_region_has_no_data(server):
    with client_region(server, 16) as region:
        region.array()[:] = [1, 2, 3, 4]
        reply = server.infer("plain", document([4], region.part(), region.part()))
        assert reply.json["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [4]}]
        for wanted, text in (
            ({"classification": 1}, "Output can't set both 'shared_memory_region' and 'classification'"),
            ({"binary_data": True}, "Output can't set both 'shared_memory_region' and 'binary_data'"),
        ):
            reply = server.infer("plain", document([4], region.part(), {**region.part(), **wanted}))
            assert (reply.status, reply.error) == (400, text)
        source = {"shared_memory_region": region.name}
        reply = server.infer("plain", document([4], source, None))
        assert (reply.status, reply.error) == (
            400,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'IN'",
        )


@pytest.mark.parametrize("model", ["plain", "viewer", "caller", "chain", "cached"])
@pytest.mark.parametrize("count", [4, LARGE * 4], ids=["small", "large"])
def test_models_of_every_kind(server, model, count):
    with client_region(server, 8 * count) as region:
        source, target = region.array(count=count), region.array(offset=4 * count)
        for first in (1, 2):
            source[:] = np.arange(first, first + count, dtype=np.float32)
            reply = server.infer(model, document([count], region.part(4 * count), region.part(4 * count, 4 * count)))
            assert reply.status == 200, reply
            added = 0 if model != "cached" else target[0] - source[0]
            np.testing.assert_array_equal(target, source + added)
        del source, target


def test_an_ensembles_inner_tensor_is_copied_by_the_host(server):
    count = LARGE * 4
    with client_region(server, 12 * count) as region:
        source, middle, end = (region.array(offset=4 * count * place, count=count) for place in range(3))
        source[:] = np.arange(count, dtype=np.float32)
        body = document([count], region.part(4 * count), region.part(4 * count, 8 * count))
        body["outputs"].append({"name": "MIDDLE", "parameters": region.part(4 * count, 4 * count)})
        reply = server.infer("chain", body)
        assert reply.status == 200, reply
        np.testing.assert_array_equal(middle, source)
        np.testing.assert_array_equal(end, source)
        body["outputs"][1]["parameters"]["shared_memory_byte_size"] = 4
        assert server.infer("chain", body).error.startswith(
            f"shared memory size specified with the request for output 'MIDDLE' (4 bytes) should be at least {4 * count} bytes"
        )
        del source, middle, end


def test_what_lies_in_a_region_is_not_cached(server):
    with client_region(server, 16) as region:
        region.array()[:] = 0
        answers = [
            server.infer("cached", document([4], region.part(), None)).json["outputs"][0]["data"] for _ in range(2)
        ]
        assert answers[0] != answers[1]


def test_views_are_read_only_and_copies_are_not(server):
    with client_region(server, 4 * LARGE) as region:
        region.array()[:] = 5
        body = {"inputs": document([LARGE], region.part(), None)["inputs"], "outputs": [{"name": "SEEN"}]}
        assert server.infer("viewer", body).json["outputs"][0]["data"] == [0, 5, 5]


def test_strings(server):
    elements = [b"a", b"", b"abc" * 5000]
    data = encode_elements(elements)
    with client_region(server, 2 * len(data)) as region:
        region.array(np.uint8, count=len(data))[:] = np.frombuffer(data, np.uint8)
        body = document([3], region.part(len(data)), region.part(len(data), len(data)), datatype="BYTES", id="one")
        assert server.infer("strings", body).status == 200
        assert region.array(np.uint8, offset=len(data), count=len(data)).tobytes() == data
        for shape, text in (
            (2, "unexpected number of string elements 3 for inference input 'IN' for model 'strings', expecting 2"),
            (4, "expected 4 string elements for inference input 'IN' for model 'strings', got 3"),
        ):
            body["inputs"][0]["shape"] = [shape]
            reply = server.infer("strings", body)
            assert (reply.status, reply.error) == (400, f"[request id: one] {text}")
        both = [
            {"name": name, "datatype": "BYTES", "shape": [4], "parameters": region.part(len(data))}
            for name in ("IN0", "IN1")
        ]
        reply = server.infer("two_strings", {"inputs": both})
        assert (reply.status, reply.error) == (
            400,
            "[request id: <id_unknown>] expected 4 string elements for inference input 'IN1' for model 'two_strings', got 3",
        )


def test_streams(server):
    with client_region(server, 8 * LARGE) as region:
        source, target = region.array(count=LARGE), region.array(offset=4 * LARGE)
        source[:] = 3
        client, answers = tritonclient.grpc.InferenceServerClient(server.grpc_url), []
        client.start_stream(lambda result, error: answers.append((error, None if error else result.get_response())))
        given, wanted = (
            tritonclient.grpc.InferInput("IN", [LARGE], "FP32"),
            tritonclient.grpc.InferRequestedOutput("OUT"),
        )
        given.set_shared_memory(region.name, 4 * LARGE)
        wanted.set_shared_memory(region.name, 4 * LARGE, offset=4 * LARGE)
        client.async_stream_infer("streamer", [given], outputs=[wanted])
        client.stop_stream()
        client.close()
        assert [error for error, _ in answers] == [None, None]
        assert [list(response.outputs[0].shape) for _, response in answers] == [[LARGE], [LARGE]]
        assert [response.raw_output_contents for _, response in answers] == [[b""], [b""]]
        np.testing.assert_array_equal(target, source * 2)
        del source, target


def test_states_of_sequences(server):
    with client_region(server, 32) as region:
        region.array(count=4)[:] = 1
        for step in (1, 2):
            body = document([4], region.part(16), region.part(16, 16))
            body["outputs"].append({"name": "STATE_OUT", "parameters": region.part(16, 16)})
            del body["outputs"][1]  # states are not for clients
            body["parameters"] = {"sequence_id": 5, "sequence_start": step == 1, "sequence_end": step == 2}
            assert server.infer("stateful", body).status == 200
            assert region.array(offset=16).tolist() == [step] * 4


def test_refusals_are_counted(server):
    before = server.metrics().get('pybackend_refused_requests_total{model="",protocol="http",reason="invalid"}', 0)
    server.request("POST", REGISTER, {"byte_size": 64})
    after = server.metrics()['pybackend_refused_requests_total{model="",protocol="http",reason="invalid"}']
    assert after == before + 1


@served()
def closed_server(repository):
    write_model(repository, "plain", IDENTITY, identity_config())


def test_it_is_off_by_default(closed_server):
    text = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    for kind in ("system", "cuda"):
        base = f"/v2/{kind}sharedmemory"
        for path in (f"{base}/region/r/register", f"{base}/region/r/unregister", f"{base}/unregister"):
            reply = closed_server.request("POST", path, {"key": "/k", "byte_size": 64})
            is_about_gpus = path == "/v2/cudasharedmemory/region/r/register"
            assert (reply.status, reply.error) == ((400, NO_GPU) if is_about_gpus else (501, text))
        assert closed_server.get(f"{base}/status").json == []
    client = tritonclient.grpc.InferenceServerClient(closed_server.grpc_url)
    with pytest.raises(InferenceServerException, match="Client shared memory is disabled") as raised:
        client.register_system_shared_memory("r", "/k", 64)
    assert raised.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(InferenceServerException) as raised:
        client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 64)
    assert (raised.value.status(), raised.value.message()) == ("StatusCode.INVALID_ARGUMENT", NO_GPU)
    assert not client.get_system_shared_memory_status().regions
    client.close()
    reply = closed_server.infer(
        "plain", document([4], {"shared_memory_region": "r", "shared_memory_byte_size": 16}, None)
    )
    assert (reply.status, reply.error) == (404, "Unable to find shared memory region: 'r'")
