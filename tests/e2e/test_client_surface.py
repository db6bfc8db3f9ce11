"""Every method of tritonclient's four clients is called once: none of them may be forgotten, none may break."""

import asyncio
import inspect
import threading
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from tests.support.client_memory import FLAG, ClientRegion
from tests.support.repositories import IDENTITY, copy_model, identity_config, write_model
from tests.support.served import served

pytestmark = pytest.mark.spec("srv-P09")

MODULES = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}
VALUES = np.array([1, 2, 3], np.float32)


@served(flags=("--model-control-mode=explicit", "--load-model=*", FLAG))
def server(repository):
    for name in ("identity", "other"):
        write_model(repository, name, IDENTITY, identity_config())
    copy_model(repository, "repeat")


class Client:
    """One of the clients; what it returns is awaited, and messages become dictionaries."""

    def __init__(self, name, server):
        self.module = MODULES[name]
        self.is_grpc = name.startswith("grpc")
        self.is_asyncio = name.endswith("aio")
        self._runner = asyncio.Runner()
        self.raw = self._runner.run(self._make(server.grpc_url if self.is_grpc else server.url))

    async def _make(self, url):
        return self.module.InferenceServerClient(url)

    def run(self, awaitable):
        async def wait():
            return await awaitable

        return self._runner.run(wait())

    def __getattr__(self, name):
        method = getattr(self.raw, name)

        def call(*arguments, **options):
            found = method(*arguments, **options)
            return self.run(found) if inspect.isawaitable(found) else found

        return call

    def told(self, name, *arguments):
        """What a method says, as a dictionary."""
        return getattr(self, name)(*arguments, **({"as_json": True} if self.is_grpc else {}))

    def inputs(self, values=VALUES):
        return [self.module.InferInput("IN", [len(values)], "FP32").set_data_from_numpy(values)]

    def close_all(self):
        self.close()
        self._runner.close()


@pytest.fixture(params=MODULES)
def client(request, server):
    made = Client(request.param, server)
    yield made
    made.close_all()


# --- one check for each method ---


def check_metadata(client):
    assert client.told("get_server_metadata")["name"] == "triton"
    assert client.told("get_model_metadata", "identity")["name"] == "identity"
    config = client.told("get_model_config", "identity")
    assert (config["config"] if client.is_grpc else config)["backend"] == "python"


def check_health(client):
    assert client.is_server_live() is True
    assert client.is_server_ready() is True
    assert client.is_model_ready("identity") is True


def check_repository(client):
    def index():
        found = client.told("get_model_repository_index")
        return {each["name"]: each.get("state") for each in (found["models"] if client.is_grpc else found)}

    assert index() == dict.fromkeys(("identity", "other", "repeat"), "READY")
    client.unload_model("other")
    assert client.is_model_ready("other") is False
    client.load_model("other")
    assert client.is_model_ready("other") is True
    assert index()["other"] == "READY"


def check_statistics(client):
    client.infer("identity", client.inputs())
    (found,) = client.told("get_inference_statistics", "identity")["model_stats"]
    assert found["name"] == "identity"
    assert int(found["inference_count"]) >= 1


def check_logging(client):
    before = client.told("get_log_settings")
    client.update_log_settings({"log_verbose_level": 1})
    after = client.told("get_log_settings")
    assert after != before
    client.update_log_settings({"log_verbose_level": 0})
    assert client.told("get_log_settings") == before


def check_infer(client):
    np.testing.assert_array_equal(client.infer("identity", client.inputs()).as_numpy("OUT"), VALUES)


def check_async_infer(client):
    if not client.is_grpc:
        found = client.async_infer("identity", client.inputs()).get_result()
    else:
        answers, came = [], threading.Event()
        client.async_infer(
            "identity", client.inputs(), lambda result, error: (answers.append((result, error)), came.set())
        )
        assert came.wait(60)
        ((found, error),) = answers
        assert error is None
    np.testing.assert_array_equal(found.as_numpy("OUT"), VALUES)


def check_stream(client):
    answers = []
    client.start_stream(lambda result, error: answers.append((result, error)))
    client.async_stream_infer("repeat", client.inputs(np.array([3], np.float32)))
    client.stop_stream()
    assert [(result.as_numpy("OUT").tolist(), error) for result, error in answers] == [([n], None) for n in range(3)]


def check_stream_infer(client):
    async def requests():
        yield {"model_name": "repeat", "inputs": client.inputs(np.array([3], np.float32))}

    async def collect():
        return [result.as_numpy("OUT").tolist() async for result, error in client.raw.stream_infer(requests())]

    assert client.run(collect()) == [[0], [1], [2]]


def check_plugins(client):
    plugin = BasicAuth("name", "secret")
    client.register_plugin(plugin)
    assert client.plugin() is plugin
    assert client.is_server_live() is True
    client.unregister_plugin()
    assert client.plugin() is None


def check_bodies(client):
    body, length = client.raw.generate_request_body(client.inputs())
    assert len(body) == length + VALUES.nbytes
    text = b'{"outputs":[{"name":"OUT","datatype":"FP32","shape":[3],"data":[1,2,3]}]}'
    assert client.raw.parse_response_body(text).as_numpy("OUT").tolist() == [1, 2, 3]


def check_trace(client):
    before = client.told("get_trace_settings")
    changed = client.told("update_trace_settings", "identity", {"trace_rate": "77"})
    assert "'77'" in str(changed)
    client.update_trace_settings("identity", {"trace_rate": None})
    assert client.told("get_trace_settings") == before


def check_shared_memory(client):
    def regions():
        found = client.told("get_system_shared_memory_status")
        return list(found.get("regions", {})) if client.is_grpc else [each["name"] for each in found]

    with closing(ClientRegion(VALUES.nbytes)) as region:
        region.array()[:] = VALUES
        client.register_system_shared_memory("region", region.key, VALUES.nbytes)
        assert regions() == ["region"]
        shared = client.module.InferInput("IN", [3], "FP32")
        shared.set_shared_memory("region", VALUES.nbytes)
        np.testing.assert_array_equal(client.infer("identity", [shared]).as_numpy("OUT"), VALUES)
        client.unregister_system_shared_memory("region")
    assert regions() == []


def check_cuda_memory(client):
    """There is none here: nothing is registered, and nothing can be."""
    assert not client.told("get_cuda_shared_memory_status").get("regions") if client.is_grpc else True
    with pytest.raises(InferenceServerException):
        client.register_cuda_shared_memory("region", b"AAAA", 0, 64)
    client.unregister_cuda_shared_memory()


CHECKS = {
    check_trace: ["get_trace_settings", "update_trace_settings"],
    check_shared_memory: [
        "get_system_shared_memory_status",
        "register_system_shared_memory",
        "unregister_system_shared_memory",
    ],
    check_cuda_memory: [
        "get_cuda_shared_memory_status",
        "register_cuda_shared_memory",
        "unregister_cuda_shared_memory",
    ],
    check_health: ["is_server_live", "is_server_ready", "is_model_ready"],
    check_metadata: ["get_server_metadata", "get_model_metadata", "get_model_config"],
    check_repository: ["get_model_repository_index", "load_model", "unload_model"],
    check_statistics: ["get_inference_statistics"],
    check_logging: ["get_log_settings", "update_log_settings"],
    check_infer: ["infer"],
    check_async_infer: ["async_infer"],
    check_stream: ["start_stream", "async_stream_infer", "stop_stream"],
    check_stream_infer: ["stream_infer"],
    check_plugins: ["plugin", "register_plugin", "unregister_plugin"],
    check_bodies: ["generate_request_body", "parse_response_body"],
}
CHECKED = {name for names in CHECKS.values() for name in names} | {"close"}  # each test closes its client


def methods(module):
    found = inspect.getmembers(module.InferenceServerClient, callable)
    return {name for name, _ in found if not name.startswith("_")}


@pytest.mark.parametrize("name", MODULES)
def test_no_method_is_forgotten(name):
    assert methods(MODULES[name]) - CHECKED == set()


@pytest.mark.parametrize(
    ("client", "check"),
    [
        (name, check)
        for name, module in MODULES.items()
        for check, names in CHECKS.items()
        if {*names} <= methods(module)
    ],
    indirect=["client"],
)
def test_methods(client, check):
    check(client)
