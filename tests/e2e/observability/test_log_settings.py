"""The log's settings are read and changed over both ports while the server runs."""

import json
import re

import grpc
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.e2e.observability.conftest import REQUEST
from tests.support.gates import wait_until
from tests.support.server import serving

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
LINE = r'I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w./]+:\d+\] "'
ISO_LINE = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ [\w./]+:\d+\] "'


@pytest.fixture(scope="module")
def server(models):
    with serving(models) as process:
        yield process


@pytest.fixture
def change(server):
    """Changes settings over HTTP, and back at the end."""
    yield lambda settings: server.request("POST", "/v2/logging", settings)
    assert server.request("POST", "/v2/logging", {**DEFAULTS, "log_file": None}).json == DEFAULTS


@pytest.fixture
def client(server):
    with grpc_client.InferenceServerClient(server.grpc_url) as made:
        yield made


@pytest.mark.spec("srv-H32")
def test_the_document(server):
    reply = server.get("/v2/logging")
    assert (reply.status, reply.headers["content-type"], reply.json) == (200, "application/json", DEFAULTS)
    assert list(reply.json) == list(DEFAULTS)


@pytest.mark.spec("srv-H32")
def test_a_change_answers_with_all_settings(change):
    assert change({"log_verbose_level": 2, "log_warning": False, "log_info": None}).json == {
        **DEFAULTS,
        "log_verbose_level": 2,
        "log_warning": False,
    }
    assert change({}).json["log_verbose_level"] == 2


REFUSED = [
    ("", 500, "failed to parse the request JSON buffer: The document is empty"),
    ("[]", 500, "Unable to parse 'settings': attempt to access JSON non-object as object"),
    ({"log_file": "/tmp/x"}, 501, "log file location can not be updated through network protocol"),
    ({"log_format": "xml"}, 503, "invalid argument for --log_format, got: xml"),
    ({"log_format": 1}, 500, "Unable to parse 'log_format': attempt to access JSON non-string as string"),
    ({"log_info": "no"}, 500, "Unable to parse 'log_info': attempt to access JSON non-boolean as boolean"),
    (
        {"log_verbose_level": -1},
        500,
        "Unable to parse 'log_verbose_level': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    ({"log_verbose_level": 2**32}, 400, "log_verbose_level is 4294967296"),
    ({"log_verbose": 1}, 400, "'log_verbose' is no setting of the log"),
    ({"x": 1}, 400, "'x' is no setting of the log"),
    ("x" * 70_000, 400, "the body exceeds 8192 bytes"),
]


@pytest.mark.spec("srv-H32")
@pytest.mark.parametrize(("body", "status", "text"), REFUSED, ids=range(len(REFUSED)))
def test_changes_that_cannot_be(server, body, status, text, snapshot):
    if isinstance(body, dict):
        body = {**body, "log_error": False}
    reply = server.request("POST", "/v2/logging", body)
    assert (reply.status, reply.error[: len(text)]) == (status, text)
    assert reply.error == snapshot
    assert server.get("/v2/logging").json == DEFAULTS


@pytest.mark.spec("srv-H32")
def test_the_same_over_grpc(server, client, change):
    def settings(answer):
        return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in answer.settings.items()}

    assert settings(client.get_log_settings()) == DEFAULTS
    changed = {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
    assert settings(client.update_log_settings(changed)) == {**DEFAULTS, **changed}
    for wrong, status, text in (
        ({"log_file": "/tmp/x"}, "UNIMPLEMENTED", "log file location can not be updated through network protocol"),
        ({"log_format": "xml"}, "UNAVAILABLE", "invalid argument for --log_format, got: xml"),
        ({"log_nothing": True}, "INVALID_ARGUMENT", "'log_nothing' is no setting of the log"),
    ):
        with pytest.raises(InferenceServerException, match=text) as caught:
            client.update_log_settings(wrong)
        assert caught.value.status() == f"StatusCode.{status}"
    message = grpc_client.service_pb2.LogSettingsRequest()
    message.settings["log_info"].uint32_param = 1
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as refused:
        grpc_client.service_pb2_grpc.GRPCInferenceServiceStub(channel).LogSettings(message)
    assert refused.value.details() == "expect bool_param for 'log_info', got uint32_param"


@pytest.mark.spec("srv-M16")
def test_verbose_lines_name_each_request(server, change, client):
    server.infer("identity", REQUEST)
    assert "HTTP request: POST /v2/models" not in server.output
    change({"log_verbose_level": 1})
    for _ in range(3):  # the third head is known
        server.infer("identity", REQUEST)
    server.get("/v2/models/identity?x=1")
    assert client.is_server_live()
    server.wait_for(LINE + 'gRPC request: POST /inference.GRPCInferenceService/ServerLive"')
    assert len(re.findall(LINE + 'HTTP request: POST /v2/models/identity/infer"', server.output)) == 3
    assert len(re.findall(LINE + 'HTTP request: GET /v2/models/identity"', server.output)) == 1


@pytest.mark.spec("srv-M15")
def test_formats_change_at_run_time(server, change):
    change({"log_verbose_level": 1, "log_format": "ISO8601"})
    server.get("/v2/models/iso")
    server.wait_for(f'(?m)^{ISO_LINE}HTTP request: GET /v2/models/iso"$')
    change({"log_format": "json"})
    server.get('/v2/models/%22json%7f"')
    found = server.wait_for(r"(?m)^{.*HTTP request: GET /v2/models/%22json.*}$")
    line = json.loads(found[0])
    assert list(line) == ["time", "level", "pid", "file", "line", "message"]
    assert (line["level"], line["pid"], line["file"]) == ("VERBOSE", server.process.pid, "request_log.py")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"])


@pytest.mark.spec("srv-M15")
def test_levels_change_at_run_time(server, change):
    assert change({"log_info": False, "log_verbose_level": 1}).status == 200
    server.get("/v2/models/quiet")
    server.wait_for("HTTP request: GET /v2/models/quiet")
    assert change({"log_verbose_level": 0}).status == 200
    server.get("/v2/models/silent")
    change({"log_verbose_level": 1})
    server.get("/v2/models/loud")
    server.wait_for("HTTP request: GET /v2/models/loud")
    assert "silent" not in server.output


def test_nobody_silences_the_log_unseen(server, change):
    """Each level that ends says so in its last line."""
    change({})
    began = len(server.output)
    change({"log_warning": False})
    change({"log_info": False, "log_error": False, "log_warning": False})
    said = r"([IWE]).*a client has switched off this log's lines of level (\w+); POST /v2/logging brings them back"
    found = lambda: re.findall(said, server.output[began:])  # noqa: E731
    wait_until(lambda: len(found()) == 3, "the log says nothing")
    assert found() == [("W", "warning"), ("I", "info"), ("E", "error")]
