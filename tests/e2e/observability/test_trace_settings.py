"""The settings of traces are read and changed over both ports, for the whole server and for single models."""

import os

import grpc
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.server import serving

SERVER, MODEL = "/v2/trace/setting", "/v2/models/identity/trace/setting"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Relative: settings show it as it was given."""
    return f"./{os.path.relpath(tmp_path_factory.mktemp('traces') / 'trace.json')}"


@pytest.fixture(scope="module")
def server(models, file):
    with serving(models, flags=(f"--trace-config=triton,file={file}", "--trace-config=rate=10")) as process:
        yield process


@pytest.fixture(scope="module")
def defaults(file):
    return {
        "trace_level": ["OFF"],
        "trace_rate": "10",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": file,
        "trace_mode": "triton",
    }


@pytest.fixture
def change(server, defaults):
    """Changes settings over HTTP, and back at the end."""
    yield lambda path, settings: server.request("POST", path, settings)
    nothing = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
    for path in (SERVER, MODEL):
        assert server.request("POST", path, nothing).json == defaults


@pytest.mark.spec("srv-H31")
def test_the_document(server, defaults):
    for path in (SERVER, MODEL):
        reply = server.get(path)
        assert (reply.status, reply.headers["content-type"], reply.json) == (200, "application/json", defaults)
        assert list(reply.json) == list(defaults)


@pytest.mark.spec("srv-H31")
def test_a_model_differs_until_null_clears_it(change, server, defaults):
    assert change(MODEL, {"trace_rate": "3", "trace_level": ["TENSORS", "TIMESTAMPS"]}).json == {
        **defaults,
        "trace_rate": "3",
        "trace_level": ["TENSORS", "TIMESTAMPS"],
    }
    assert change(SERVER, {"trace_rate": "7", "trace_count": "5"}).json == {
        **defaults,
        "trace_rate": "7",
        "trace_count": "5",
    }
    assert server.get(MODEL).json["trace_rate"] == "3"
    assert server.get(MODEL).json["trace_count"] == "5"
    assert change(MODEL, {"trace_rate": None}).json["trace_rate"] == "7"
    assert server.get(MODEL).json["trace_level"] == ["TENSORS", "TIMESTAMPS"]
    assert change(SERVER, {"trace_rate": None}).json["trace_rate"] == "10"
    assert change(SERVER, {}).json["trace_count"] == "5"


REFUSED = [
    ("", 500, "failed to parse the request JSON buffer: The document is empty"),
    ({"trace_file": "x"}, 501, "trace file location can not be updated through network protocol"),
    ({"trace_level": ["OFF", "TIMESTAMPS"]}, 400, "Expect only one trace level 'OFF' is specified"),
    ({"trace_level": ["MUCH"]}, 400, "Unable to parse 'trace_level', got: MUCH"),
    ({"trace_level": "OFF"}, 500, "Unable to parse 'trace_level': attempt to access JSON non-array as array"),
    ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
    ({"trace_rate": 1}, 500, "Unable to parse 'trace_rate': attempt to access JSON non-string as string"),
    (
        {"trace_rate": "4294967296"},
        400,
        "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296",
    ),
    ({"log_frequency": "-1"}, 400, "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: -1"),
    ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    ({"trace_count": "y"}, 400, "Unable to parse 'trace_count', got: y"),
    (
        {"trace_rate": "0", "trace_level": ["TIMESTAMPS"]},
        400,
        "Attempting to set invalid trace setting :sample rate must be non-zero",
    ),
    ({"trace_mode": "opentelemetry"}, 400, "'trace_mode' is no trace setting that can be changed at run time"),
]


@pytest.mark.spec("srv-H31")
@pytest.mark.parametrize("path", [SERVER, MODEL])
@pytest.mark.parametrize(("body", "status", "text"), REFUSED, ids=range(len(REFUSED)))
def test_changes_that_cannot_be(server, defaults, path, body, status, text, snapshot):
    reply = server.request("POST", path, body)
    assert (reply.status, reply.error[: len(text)]) == (status, text)
    assert reply.error == snapshot
    assert server.get(path).json == defaults


@pytest.mark.spec("srv-H31")
def test_a_model_that_does_not_serve(server):
    for method in ("GET", "POST"):
        reply = server.request(method, "/v2/models/none/trace/setting", b"{}" if method == "POST" else None)
        assert (reply.status, reply.error) == (400, "Request for unknown model : none")


@pytest.mark.spec("srv-H31")
def test_both_clients(server, defaults, change):
    with (
        http_client.InferenceServerClient(server.url) as over_http,
        grpc_client.InferenceServerClient(server.grpc_url) as over_grpc,
    ):
        assert over_http.get_trace_settings() == defaults
        assert values(over_grpc.get_trace_settings()) == defaults
        answer = over_grpc.update_trace_settings("identity", {"trace_rate": "2", "trace_level": ["TIMESTAMPS"]})
        assert values(answer) == {**defaults, "trace_rate": "2", "trace_level": ["TIMESTAMPS"]}
        assert over_http.get_trace_settings("identity") == values(answer)
        cleared = over_grpc.update_trace_settings("identity", {"trace_rate": None, "trace_level": None})
        assert values(cleared) == defaults
        for settings, model, status, text in (
            ({"trace_file": "x"}, None, "UNIMPLEMENTED", "trace file location can not be updated"),
            ({"trace_rate": "x"}, None, "INVALID_ARGUMENT", "Unable to parse 'trace_rate', got: x"),
            ({}, "none", "INVALID_ARGUMENT", "Request for unknown model : none"),
        ):
            with pytest.raises(InferenceServerException, match=text) as caught:
                over_grpc.update_trace_settings(model, settings)
            assert caught.value.status() == f"StatusCode.{status}"
    message = grpc_client.service_pb2.TraceSettingRequest()
    message.settings["trace_rate"].value.extend(["1", "2"])
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as refused:
        grpc_client.service_pb2_grpc.GRPCInferenceServiceStub(channel).TraceSetting(message)
    assert refused.value.details() == "expect only 1 value for 'trace_rate', got 2"


def values(answer):
    """The settings as HTTP shows them."""
    found = {name: list(setting.value) for name, setting in answer.settings.items()}
    return {name: value if name == "trace_level" else value[0] for name, value in found.items()}


@pytest.mark.spec("srv-H31")
def test_without_a_file_there_are_no_traces(models):
    with serving(models) as server:
        reply = server.request("POST", SERVER, {"trace_level": ["TIMESTAMPS"]})
        text = "Attempting to set invalid trace setting :trace file name is not given"
        assert (reply.status, reply.error[: len(text)]) == (400, text)
