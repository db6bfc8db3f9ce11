"""API keys: which calls need one, where it may stand, and how the set of keys changes."""

import json
import os
import re
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
import trustme

from tests.e2e.access.conftest import BODY, grpc_inputs
from tests.support.connection import connected, head, post
from tests.support.server import DEADLINE_S, ServerProcess, serving

KEYS = ["first-key-0123456789", "second-key-0123456789"]
INFER = "/v2/models/identity/infer"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def key_file(tmp_path):
    """A file with two keys."""
    file = tmp_path / "keys"
    file.write_text("# for the team\n\n" + "\n".join(KEYS) + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("# for the team\n\n" + "\n".join(KEYS) + "\n")
    file.chmod(0o600)
    with serving(repository, flags=(f"--api-key-file={file}", "--metrics-address=127.0.0.1"), ready=False) as server:
        server.wait_for("identity .*READY")
        yield server


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/live", "/v2/health/ready", "/nothing", "/docs", "/v2/models/no", "/openapi.json"]
)
def test_every_route_needs_a_key(server, path):
    reply = server.get(path)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.error == "an API key is needed: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
    assert server.request("GET", path, headers=bearer(KEYS[1])).status != 401


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (f"Authorization: Bearer {KEYS[0]}", 200),
        (f"authorization: bearer   {KEYS[1]}", 200),
        (f"X-API-Key: {KEYS[0]}", 200),
        (f"X-Api-Key:{KEYS[0]} ", 200),
        (f"Authorization: Bearer other\r\nx-api-key: {KEYS[0]}", 200),
        (f"Authorization: Basic {KEYS[0]}", 401),
        (f"Authorization: {KEYS[0]}", 401),
        (f"Authorization: Bearer {KEYS[0]} {KEYS[1]}", 401),
        (f"Authorization: Bearer {KEYS[0]}, Bearer {KEYS[1]}", 401),
        (f"Authorization: Bearer {KEYS[0][:-1]}", 401),
        (f"Authorization: Bearer {KEYS[0].upper()}", 401),
        (f"Authorization: Bearer {KEYS[0]}\r\nAuthorization: Bearer {KEYS[0]}", 401),
        (f"x-api-key: {KEYS[0]}\r\nX-API-KEY: nothing", 401),
        (f"x_api_key: {KEYS[0]}", 401),
        (f"Cookie: x-api-key={KEYS[0]}", 401),
        ("Authorization: Bearer", 401),
        ("x-api-key: # for the team", 401),
        ("x-api-key: \xe9", 401),
    ],
)
def test_where_a_key_may_stand(server, fields, status):
    with connected(server.port) as connection:
        connection.send(f"GET /v2 HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode("latin-1"))
        assert connection.reply().status == status


def test_the_document_says_that_a_key_is_needed(server):
    assert server.get("/openapi.json").status == 401
    document = server.request("GET", "/openapi.json", headers=bearer(KEYS[0])).json
    assert document["components"]["securitySchemes"] == {"API key": {"type": "http", "scheme": "bearer"}}
    for path in ("/v2/models/{model_name}/infer", "/v2/models/identity/infer"):
        assert document["paths"][path]["post"]["security"] == [{"API key": []}]


def test_a_key_in_the_query_is_none(server):
    assert server.get(f"/v2?api_key={KEYS[0]}&x-api-key={KEYS[0]}").status == 401


def test_inference_over_http(server):
    with triton_http.InferenceServerClient(server.url) as client:
        for _ in range(4):
            result = client.infer("identity", grpc_inputs(triton_http), headers=bearer(KEYS[0]))
            assert result.as_numpy("OUT").tolist() == [0.5]
        with pytest.raises(triton_http.InferenceServerException, match="API key"):
            client.infer("identity", grpc_inputs(triton_http))
        with pytest.raises(triton_http.InferenceServerException, match="not one of this server's"):
            client.infer("identity", grpc_inputs(triton_http), headers={"x-api-key": "x" * 20})
    assert server.request("POST", INFER, b"x" * (4 << 20)).status == 401


def test_inference_over_grpc(server):
    with triton.InferenceServerClient(server.grpc_url) as client:
        for headers in ({"authorization": f"Bearer {KEYS[0]}"}, {"x-api-key": KEYS[1]}):
            for _ in range(3):
                result = client.infer("identity", grpc_inputs(triton), headers=headers, client_timeout=DEADLINE_S)
                assert result.as_numpy("OUT").tolist() == [0.5]
        for headers in ({}, {"x-api-key": "x" * 20}, {"authorization": f"Basic {KEYS[0]}"}):
            with pytest.raises(triton.InferenceServerException) as caught:
                client.infer("identity", grpc_inputs(triton), headers=headers, client_timeout=DEADLINE_S)
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
    with grpc.insecure_channel(server.grpc_url) as channel:
        for path in ("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive", "/no.Such/Method"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"", timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_metrics_need_a_key(server):
    assert server.request("GET", "/metrics", port=server.metrics_port).status == 401
    assert server.request("GET", "/metrics", headers=bearer(KEYS[0]), port=server.metrics_port).status == 200


def test_nothing_is_logged(server):
    server.request("GET", "/v2", headers=bearer("wrong-key-0123456789"))
    assert "plain text" not in server.output  # its ports are for this machine only
    for key in (*KEYS, "wrong-key-0123456789"):
        assert key not in server.output


def until(condition, server: ServerProcess):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, server.output
        threading.Event().wait(0.05)


def test_keys_change_while_the_server_runs(repository, key_file):
    """Connections that are open, and heads that are known, follow the new keys at once."""
    exempt = "--api-key-exempt=health,metrics"
    with serving(
        repository, flags=(f"--api-key-file={key_file}", exempt, "--metrics-address=0.0.0.0", "--log-verbose=1")
    ) as server:
        server.metrics()
        assert server.get("/v2").status == 401
        key = {"x-api-key": KEYS[0]}
        request = post(INFER, json.dumps(BODY).encode(), key)
        with connected(server.port) as connection, triton.InferenceServerClient(server.grpc_url) as client:
            assert client.is_server_ready()
            for _ in range(4):
                connection.send(request)
                assert connection.reply().status == 200
                client.infer("identity", grpc_inputs(triton), headers=key, client_timeout=DEADLINE_S)
            replace(key_file, f"{KEYS[1]}\nthird-key-0123456789\n")
            until(lambda: server.request("GET", "/v2", headers=bearer("third-key-0123456789")).status == 200, server)
            connection.send(request)
            assert connection.reply().status == 401
            with pytest.raises(triton.InferenceServerException, match="not one of this server's"):
                client.infer("identity", grpc_inputs(triton), headers=key, client_timeout=DEADLINE_S)
            client.infer("identity", grpc_inputs(triton), headers={"x-api-key": KEYS[1]}, client_timeout=DEADLINE_S)
        key_file.unlink()
        server.wait_for("The API keys stay as they were: --api-key-file .* cannot be read: No such file or directory")
        assert server.request("GET", "/v2", headers=bearer(KEYS[1])).status == 200
        key_file.write_text("# none\n")
        server.wait_for("The API keys stay as they were: --api-key-file .* has no key")
        key_file.write_text("fourth-key-0123456789\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.request("GET", "/v2", headers=bearer("fourth-key-0123456789")).status == 200, server)
        assert server.request("GET", "/v2", headers=bearer(KEYS[1])).status == 401
        assert "key-0123456789" not in server.output


def replace(file, text):
    """Replace a file as configuration tools do: by another one."""
    other = file.with_name("other")
    other.write_text(text)
    os.replace(other, file)


def test_a_file_that_stops_the_start(repository, tmp_path):
    (tmp_path / "keys").write_text("0123456789abcdef\ntoo-short\n")
    server = ServerProcess([repository], f"--api-key-file={tmp_path / 'keys'}")
    assert server.wait() == 1
    about_python = "this CPython was built without optimisations"  # in the log, where it was
    said = [line for line in server.output.splitlines() if about_python not in line]
    assert said == [f"error: --api-key-file {tmp_path / 'keys'}, line 2: a key has 16 characters or more"]


def test_warnings(repository, key_file):
    key_file.chmod(0o644)
    flags = (f"--api-key-file={key_file}", "--grpc-address=0.0.0.0", "--metrics-address=127.0.0.1")
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for(
            "API keys cross the network in plain text: the port for gRPC listens on 0.0.0.0:[0-9]+ without TLS"
        )
        server.wait_for("Every user of this machine can read the API keys in .*: `chmod o-r` it")
        assert "port for HTTP listens" not in server.output


def test_over_tls(repository, key_file, tmp_path):
    """The answer comes before a large body, and a client that sends all of it first still reads it."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    pem = tmp_path / "server.pem"
    flags = (f"--api-key-file={key_file}", "--http-use-ssl", f"--http-server-cert={pem}", f"--http-server-key={pem}")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with serving(repository, flags=flags, ready=False) as server:
        for size, sent in ((0, 0), (8 << 20, 8 << 20), (1 << 40, 0)):
            plain = socket.create_connection(("127.0.0.1", server.port), DEADLINE_S)
            with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client:
                client.sendall(head("POST", INFER, {"Content-Length": size}) + b"x" * sent)
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_health_may_be_open(repository, key_file):
    with serving(repository, flags=(f"--api-key-file={key_file}", "--api-key-exempt=health")) as server:
        assert server.get("/v2/models/identity/ready").status == 200
        for path in (
            "/v2/health/ready/../../models/identity",
            "/v2/health/..%2f../v2/models/identity",
            "/v2/models/identity",
        ):
            assert server.get(path).status == 401
        with connected(server.port) as connection:
            connection.send(head("GET", "/v2/health/live") + head("GET", "/v2"))
            assert [reply.status for reply in connection.replies(2)] == [200, 401]
        with grpc.insecure_channel(server.grpc_url) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=DEADLINE_S)


@pytest.mark.thorough
@pytest.mark.one_process  # front ends keep the fields of open connections of gRPC as they are, and pass them on
def test_memory_does_not_gather_the_keys_of_calls(repository, tmp_path):
    """Freed memory is not overwritten at once, so some of the latest keys are there; models' processes have none."""
    keys = [f"in-memory-{number:04}-key" for number in range(200)]
    (tmp_path / "keys").write_text("\n".join(keys))
    with serving(
        repository, flags=(f"--api-key-file={tmp_path / 'keys'}", "--api-key-exempt=health,metrics")
    ) as server:
        with triton.InferenceServerClient(server.grpc_url) as client:
            for key in keys:
                headers = {"authorization": f"Bearer {key}"}
                for _ in range(4):  # from the third on its head is known
                    assert server.infer("identity", BODY, headers).status == 200
                assert server.request("GET", "/v2", headers=headers).status == 200
                client.infer("identity", grpc_inputs(triton), headers=headers, client_timeout=DEADLINE_S)
        models = set(server.stub_pids())
        found = {pid: keys_in_memory(pid) for pid in (server.process.pid, *server.child_pids())}
    assert all(not found[pid] for pid in models)
    assert len(found[server.process.pid]) < len(keys) // 4


def keys_in_memory(pid):
    """The keys of the test in the memory of a process."""
    found = set()
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            if rights.startswith("rw"):
                begin, end = (int(each, 16) for each in place.split("-"))
                memory.seek(begin)
                found.update(re.findall(rb"in-memory-\d{4}-key", memory.read(end - begin)))
    return found
