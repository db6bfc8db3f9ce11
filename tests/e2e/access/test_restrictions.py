"""Restricted groups: which routes and methods belong to each, what lets a call pass, and what does not."""

import asyncio
import json
import socket

import grpc
import pytest
import tritonclient.grpc as triton

from pybackend.frontend.access.groups import grpc_group
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.plugins import APIS, installed_apis
from pybackend.protocol.limits import BodyLimits
from pybackend.settings import ApiGroup
from tests.e2e.access.conftest import BODY, grpc_inputs
from tests.support.connection import chunked, connected, head, post
from tests.support.engine import engine_on
from tests.support.server import DEADLINE_S, serving

ROUTES = {
    "health": ["GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/identity/ready", "GET /v2/models/no/versions/1/ready"],
    "metadata": ["GET /v2", "GET /v2/models/identity", "GET /v2/models/identity/versions/1", "GET /v2/models/no"],
    "inference": [
        "POST /v2/models/identity/infer",
        "POST /v2/models/identity/versions/1/infer",
        "POST /v2/models/no/infer",
        "POST /v2/models/identity/generate",
        "POST /v2/models/no/versions/3/generate_stream",
        "GET /v2/models/identity/infer",
    ],
    "shared-memory": [
        "GET /v2/systemsharedmemory/status",
        "GET /v2/systemsharedmemory/region/no/status",
        "POST /v2/systemsharedmemory/region/no/register",
        "POST /v2/cudasharedmemory/unregister",
    ],
    "model-config": ["GET /v2/models/identity/config", "GET /v2/models/no/config", "GET /v2/models/identity/versions/1/sandbox"],
    "diagnostics": ["GET /v2/diagnostics/log", "GET /v2/diagnostics/settings", "GET /v2/diagnostics/processes", "GET /v2/diagnostics/traces",
                    "GET /v2/diagnostics/configuration", "GET /v2/diagnostics/environment"],
    "model-repository": [
        "POST /v2/repository/index",
        "GET /v2/models",
        "POST /v2/repository/models/identity/load",
        "POST /v2/repository/other/models/no/unload",
    ],
    "statistics": ["GET /v2/models/stats", "GET /v2/models/identity/stats", "GET /v2/models/no/versions/1/stats"],
    "trace": ["GET /v2/trace/setting", "POST /v2/models/identity/trace/setting"],
    "logging": ["GET /v2/logging", "POST /v2/logging"],
}  # fmt: skip

METHODS = {
    "health": ["ServerLive", "ServerReady", "ModelReady"],
    "metadata": ["ServerMetadata", "ModelMetadata"],
    "inference": ["ModelInfer", "ModelStreamInfer"],
    "shared-memory": ["SystemSharedMemoryStatus", "CudaSharedMemoryRegister"],
    "model-config": ["ModelConfig"],
    "model-repository": ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"],
    "statistics": ["ModelStatistics"],
    "trace": ["TraceSetting"],
    "logging": ["LogSettings"],
}

RESTRICTED = "This API is restricted, expecting header"
INFER = "/v2/models/identity/infer"


@pytest.fixture(scope="module")
def server(repository):
    flags = [f"--http-restricted-api={group}:X-{group}=secret:={group}" for group in ROUTES if group != "health"]
    flags += [
        f"--grpc-restricted-protocol={group}:{group}=let-me" for group in METHODS if group not in {"health", "trace"}
    ]
    flags += [
        "--http-restricted-api=health:X-health=secret:=health",
        "--grpc-restricted-protocol=health,trace:Both=let-me",
    ]
    with serving(repository, flags=tuple(flags), ready=False) as server:
        server.wait_for("identity .*READY")
        yield server


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/v2/models/identity#/infer", "has a fragment"),
        ("/v2/models/stats#/infer", "has a fragment"),
        ("/v2/models/identity/infer#", "has a fragment"),
        ("http://x%v2", "is not a path"),
        ("http://x", "is not a path"),
    ],
)
def test_a_target_with_two_meanings_or_none_is_refused(server, target, reason):
    """It could belong to one group where it is checked, and to another one where it is answered."""
    with connected(server.port) as client:
        client.send(head("GET", target, {"X-inference": "secret:=inference"}))
        reply = client.reply()
    assert (reply.status, reason in reply.error) == (400, True), reply.body
    assert "Traceback" not in server.output


@pytest.mark.spec("srv-H38")
@pytest.mark.parametrize("group", ROUTES)
def test_each_group_of_routes(server, group):
    key = {f"x-{group.upper()}": f"secret:={group}"}
    for route in ROUTES[group]:
        method, path = route.split()
        refused = server.request(method, path, headers={f"X-{group}": "secret"})
        assert (refused.status, refused.error) == (403, f"{RESTRICTED} 'X-{group}'"), route
        assert refused.headers["connection"] == "close"
        assert server.request(method, path, headers=key).status != 403, route


@pytest.mark.spec("srv-H38")
def test_the_header_lets_calls_pass(server):
    assert server.request("GET", "/v2/health/ready", headers={"X-Health": "secret:=health"}).status == 200
    key = {"x-inference": "secret:=inference"}
    for _ in range(4):  # from the third on its head is known
        assert server.infer("identity", BODY, key).json["outputs"][0]["data"] == [0.5]
    assert server.infer("identity", BODY).status == 403
    assert server.request("GET", "/nothing").status == 404


@pytest.mark.spec("srv-G16")
@pytest.mark.parametrize("group", METHODS)
def test_each_group_of_methods(server, group):
    key = f"triton-grpc-protocol-{'both' if group in {'health', 'trace'} else group}"
    refused = (grpc.StatusCode.UNAVAILABLE, f"This protocol is restricted, expecting header '{key}'")
    with grpc.insecure_channel(server.grpc_url) as channel:
        for name in METHODS[group]:
            assert outcome(channel, name) == refused
            assert outcome(channel, name, (key, "let")) == refused
            assert outcome(channel, name, (key, "let-me"), (key, "let-me-not")) == refused
            assert outcome(channel, name, (key, "let-me")) != refused


def outcome(channel, name, *metadata):
    """Status and message of a call with an empty message."""
    path = f"/inference.GRPCInferenceService/{name}"
    try:
        if name == "ModelStreamInfer":
            list(channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=DEADLINE_S))
        else:
            channel.unary_unary(path)(b"", metadata=metadata, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.spec("srv-G16")
def test_the_metadata_lets_calls_pass(server):
    with triton.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_ready({"triton-grpc-protocol-both": "let-me"})
        for _ in range(3):
            result = client.infer(
                "identity",
                grpc_inputs(triton),
                headers={"triton-grpc-protocol-inference": "let-me"},
                client_timeout=DEADLINE_S,
            )
            assert result.as_numpy("OUT").tolist() == [0.5]
        with pytest.raises(triton.InferenceServerException, match="restricted"):
            client.infer("identity", grpc_inputs(triton), client_timeout=DEADLINE_S)
    health = "/grpc.health.v1.Health/Check"
    with grpc.insecure_channel(server.grpc_url) as channel:
        with pytest.raises(grpc.RpcError, match="restricted"):
            channel.unary_unary(health)(b"", timeout=DEADLINE_S)
        assert channel.unary_unary(health)(b"", metadata=[("triton-grpc-protocol-both", "let-me")], timeout=DEADLINE_S)


@pytest.mark.parametrize(
    "target",
    [
        "/v2/models/identity/%69nfer",
        "/v2/models/identity/infer%0A",
        "/v2/%6dodels/identity/infer",
        "/v2/models/ident%69ty/infer",
        "/v2/models/identity/versions/01/infer",
        "/v2/models/identity/infer?x-inference=secret:=inference",
        "http://other/v2/models/identity/infer",
        "/v2/models/a%2Fb/infer",
    ],
)
def test_other_ways_to_write_a_path(server, target):
    with connected(server.port) as connection:
        connection.send(post(target, json.dumps(BODY).encode()))
        assert connection.reply().status == 403


@pytest.mark.parametrize(
    "fields",
    [
        "X-Inference: secret:=inference\r\nX-Inference: no",
        "X-Inference: no\r\nx-inference: secret:=inference",
        "X_Inference: secret:=inference",
        "X-Inference: secret:=inferencex",
        "X-Inference: secret:=inferenc",
        "X-Inference: Secret:=inference",
        "X-Inference:",
        "Connection: X-Inference\r\nCookie: X-Inference=secret:=inference",
        "Host: x\r\n\tX-Inference: secret:=inference",
    ],
)
def test_headers_that_are_not_it(server, fields):
    body = json.dumps(BODY).encode()
    with connected(server.port) as connection:
        connection.send(
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{fields}\r\n\r\n".encode() + body
        )
        assert connection.reply().status in {400, 403}
        assert connection.at_end()


def test_a_trailer_is_no_header(server):
    body = chunked([json.dumps(BODY).encode()])[:-2] + b"X-Inference: secret:=inference\r\n\r\n"
    with connected(server.port) as connection:
        connection.send(head("POST", INFER, {"Transfer-Encoding": "chunked"}) + body)
        assert connection.reply().status == 403


def test_a_refused_request_hides_no_other_one(server):
    """What follows a refused request, or is its body, is not read as a request."""
    key = {"X-Metadata": "secret:=metadata"}
    with connected(server.port) as connection:
        connection.send(head("GET", "/v2/logging") + head("GET", "/v2", key))
        assert connection.reply().status == 403
        assert connection.at_end()
    with connected(server.port) as connection:
        connection.send(post("/v2/logging", head("GET", "/v2", key)))
        assert connection.reply().status == 403
        assert connection.at_end()


@pytest.mark.spec("srv-H38")
def test_a_large_body_is_not_awaited(server):
    """The answer comes before the body; a client that sends all of it first still reads the answer."""
    with connected(server.port) as connection:
        connection.send(head("POST", INFER, {"Content-Length": 1 << 40}))
        assert connection.reply().status == 403
        assert connection.at_end()
    with connected(server.port) as connection:
        connection.send(head("POST", INFER, {"Content-Length": 1 << 40, "Expect": "100-continue"}))
        assert connection.reply().status == 403
    assert server.request("POST", INFER, b"x" * (8 << 20)).status == 403
    with connected(server.port) as connection:
        connection.send(head("POST", INFER, {"Transfer-Encoding": "chunked"}))
        for _ in range(100):
            connection.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        assert connection.reply().status == 403


def test_a_large_message_is_not_awaited(server):
    large = b"x" * (64 << 20)
    with grpc.insecure_channel(server.grpc_url, [("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError, match="restricted"):
            call(large, timeout=DEADLINE_S)


def test_huge_headers(server):
    assert server.request("GET", "/v2", headers={"X-Metadata": "x" * 60_000}).status == 403
    many = "".join("X-Metadata: no\r\n" for _ in range(3000))
    with connected(server.port) as connection:
        connection.send(f"GET /v2 HTTP/1.1\r\nHost: x\r\n{many}\r\n".encode())
        assert connection.reply().status == 403


def test_refusals_are_counted_and_tell_nothing(server):
    def denied(protocol):
        name = f'pybackend_refused_requests_total{{model="",protocol="{protocol}",reason="denied"}}'
        return server.metrics().get(name, 0)

    before = denied("http"), denied("grpc")
    with grpc.insecure_channel(server.grpc_url) as channel:
        for _ in range(3):  # with one head, which is read once
            outcome(channel, "ServerLive")
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head("GET", "/v2"))
        assert b" 403 " in client.recv(1 << 16)
    assert (denied("http"), denied("grpc")) == (before[0] + 1, before[1] + 3)
    assert "secret:=" not in server.output
    assert "let-me" not in server.output


def test_the_document_says_which_headers_are_needed(server):
    """It names no models, because the header of their metadata is not needed to read it."""
    document = server.get("/openapi.json").json
    operation = document["paths"]["/v2/models/{model_name}/infer"]["post"]
    ((name, scopes),) = operation["security"][0].items()
    assert scopes == []
    assert document["components"]["securitySchemes"][name] == {"type": "apiKey", "in": "header", "name": name}
    assert not [path for path in document["paths"] if "/v2/models/identity" in path]


def test_every_route_has_a_group(repository):
    """A new route must not be open by oversight."""
    apis = installed_apis(APIS)

    async def routes():
        async with engine_on(repository) as engine:
            frontend = InferFrontend(engine, BodyLimits(), ClientMemory(1 << 30))
            return {route.path for route in make_app(frontend, apis).routes}

    paths = asyncio.run(routes()) - {"/", "/docs", "/docs/{name}", "/openapi.json"}
    assert len(paths) > 20
    assert {path for path in paths if apis.group_of(path) is None} == set()
    assert {group for path in paths if (group := apis.group_of(path))} <= set(ApiGroup)
    service = triton.service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {each.name for each in service.methods if grpc_group(f"/{service.full_name}/{each.name}") is None} == set()
    assert grpc_group("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo") is None
