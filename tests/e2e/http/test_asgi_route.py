"""Infer on every form of server answers alike: own connections, those without fast paths, and the application under
somebody else's server."""

import asyncio
import gzip
import json
import socket
import threading
import zlib
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import pytest
import uvicorn
import uvloop
from fastapi import FastAPI

from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.protocol.limits import BodyLimits
from tests.e2e.http.models import write_models
from tests.support.connection import binary_body, connected, head, post, post_chunked
from tests.support.engine import engine_on
from tests.support.gates import GATE, wait_until
from tests.support.repositories import identity_config, write_model

LIMIT = 200_000

UNTIL_CANCELLED = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        mark(self.directory, "begun")
        while not requests[0].is_cancelled():
            time.sleep(0.005)
        mark(self.directory, "cancelled")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
)


class Ports(NamedTuple):
    """Where the same engine listens.

    Attributes:
        own: connections answer infer themselves.
        plain: the application runs under a plain uvicorn.
        slow: as ``own``, without fast paths.
    """

    own: int
    plain: int
    slow: int


async def serve(repository, ports, stop):
    """One engine behind both servers, until ``stop`` is set."""
    limits = BodyLimits(LIMIT)
    async with engine_on(repository) as engine:
        frontend = InferFrontend(engine, limits, ClientMemory(1 << 30))
        app = make_app(frontend)
        outer = FastAPI()
        outer.mount("/mounted", app)
        outer.mount("", app)
        slow = InferFrontend(engine, limits, frontend.client_memory, fast_paths=False)
        servers = [
            HttpServer(app, frontend.client_memory, frontend),
            HttpServer(make_app(slow), frontend.client_memory, slow),
        ]
        numbers = []
        for server in servers:
            listener = bind("127.0.0.1", 0, "HTTP")
            await server.start(listener)
            numbers.append(listener.getsockname()[1])
        plain_socket = socket.create_server(("127.0.0.1", 0))
        plain = uvicorn.Server(uvicorn.Config(outer, http="httptools", lifespan="off", log_config=None))
        serving = asyncio.create_task(plain.serve([plain_socket]))
        ports.set_result(Ports(numbers[0], plain_socket.getsockname()[1], *numbers[1:]))
        await asyncio.to_thread(stop.wait)
        plain.should_exit = True
        await serving
        for server in servers:
            await server.stop(asyncio.get_running_loop().time() + 5)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("asgi") / "models"
    write_models(repository)
    write_model(
        repository, "until_cancelled", UNTIL_CANCELLED, identity_config(extra="instance_group { kind: KIND_CPU }")
    )
    return repository


@pytest.fixture(scope="module")
def ports(repository):
    found, stop = Future(), threading.Event()
    thread = threading.Thread(target=lambda: uvloop.run(serve(repository, found, stop)))
    thread.start()
    try:
        yield found.result(60)
    finally:
        stop.set()
        thread.join(60)


def ask(port, data):
    with connected(port) as connection:
        connection.send(data)
        return connection.reply()


def tensor(name="IN", datatype="FP32", shape=(2,), **members):
    return {"name": name, "datatype": datatype, "shape": shape, **members}


def binary_request(model, size, **members):
    blob = np.random.default_rng(size).bytes(size)
    item = tensor(shape=[size // 4], parameters={"binary_data_size": size})
    return model, *binary_body({"inputs": [item], **members}, blob)


def text(**document):
    return json.dumps(document).encode()


GOOD = text(inputs=[tensor(data=[0.1, 2])])
RAW = {"Inference-Header-Content-Length": "0"}
REQUESTS = {
    "JSON": ("identity", GOOD, {}),
    "JSON with everything": ("identity", text(id="ü", parameters={"a": 1}, inputs=[tensor(data=[1, 2])]), {}),
    "NaN": ("identity", GOOD.replace(b"0.1", b"NaN"), {}),
    "version": ("versions/versions/1", GOOD, {}),
    "encoded name": ("%69dentity", GOOD, {}),
    "binary in": binary_request("identity", 400),
    "binary in and out": binary_request("identity", 400, parameters={"binary_data_output": True}),
    "large binary": binary_request("identity", 300_000, parameters={"binary_data_output": True}),
    "no elements": binary_request("identity", 0, parameters={"binary_data_output": True}),
    "raw": ("raw", bytes(16), RAW),
    "empty": ("raw", b"", {}),
    "malformed": ("identity", b"{", {}),
    "wrong type": ("identity", text(inputs=[tensor(data=["1", 2])]), {}),
    "wrong shape": ("raw_plane", GOOD, {}),
    "unknown model": ("unknown", GOOD, {}),
    "unknown version": ("identity/versions/9", GOOD, {}),
    "version beyond all bounds": ("identity/versions/" + "9" * 30, GOOD, {}),
    "version no number": ("identity/versions/x", GOOD, {}),
    "unknown output": ("identity", text(inputs=[tensor(data=[1, 2])], outputs=[{"name": "X"}]), {}),
    "header length no number": ("identity", GOOD, {"Inference-Header-Content-Length": "x"}),
    "header length too large": ("identity", GOOD, {"Inference-Header-Content-Length": "1000"}),
    "cut short": ("identity", *binary_body({"inputs": [tensor(parameters={"binary_data_size": 8})]}, b"1234567")),
    "left over": ("identity", *binary_body({"inputs": [tensor(parameters={"binary_data_size": 8})]}, b"123456789")),
    "JSON too large": ("identity", GOOD + b" " * LIMIT, {}),
    "raw too large": ("raw", bytes(LIMIT + 8), RAW),
    "not compressed": ("identity", GOOD, {"Content-Encoding": "gzip"}),
    "compressed": ("identity", gzip.compress(GOOD), {"Content-Encoding": "gzip", "Accept-Encoding": "deflate"}),
    "large and compressed": (
        "identity",
        zlib.compress(text(inputs=[tensor(shape=[12_000], data=[0] * 12_000)])),
        {"Content-Encoding": "deflate"},
    ),
    "no such compression": ("identity", GOOD, {"Content-Encoding": "br"}),
    "repeated header length": (
        "identity",
        GOOD,
        {"Inference-Header-Content-Length": f"{len(GOOD)}\r\nInference-Header-Content-Length: {len(GOOD)}"},
    ),
    "slash within the name": ("a%2Fidentity", GOOD, {}),
    "slash before a version": ("versions%2Fversions%2F1", GOOD, {}),
    "identity encoding": ("identity", GOOD, {"Content-Encoding": "identity"}),
    "error from the model": (
        "probe",
        text(inputs=[tensor("COMMAND", "BYTES", [1], data=['{"error": "no", "code": "NOT_FOUND"}'])]),
        {},
    ),
    "not text": ("probe", text(inputs=[tensor("COMMAND", "BYTES", [1], data=['{"blob": "ff"}'])]), {}),
}


ABOUT = ("content-type", "inference-header-content-length", "content-length", "accept-encoding", "content-encoding")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("model", "body", "headers"), REQUESTS.values(), ids=REQUESTS)
def test_all_ways_answer_alike(ports, model, body, headers, chunked):
    path = f"/v2/models/{model}/infer"

    def request(path, **more):
        fields = {**headers, **more}
        return post_chunked(path, [body[:10], body[10:]], fields) if chunked else post(path, body, fields)

    own, *others = (ask(port, request(path)) for port in (ports.own, ports.plain, ports.slow, ports.own, ports.own))
    for other in others:  # the last of them takes the fast path, if there is one
        assert [other.headers.get(name) for name in ABOUT] == [own.headers.get(name) for name in ABOUT]
        assert (other.status, other.body) == (own.status, own.body)


def test_http_1_0_gets_no_compression(ports):
    request = post("/v2/models/identity/infer", GOOD, {"Accept-Encoding": "gzip"}).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    for port in (ports.own, ports.plain, ports.slow):
        reply = ask(port, request)
        assert (reply.status, reply.headers.get("content-encoding")) == (200, None)
        assert reply.json["outputs"][0]["data"] == [0.10000000149011612, 2.0]


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/ready", "/v2/models/identity", "/v2/models/identity/infer", "/nothing"]
)
def test_other_routes_answer_alike(ports, path):
    own, *others = (ask(port, head("GET", path)) for port in (ports.own, ports.plain, ports.slow))
    assert [(other.status, other.body) for other in others] == [(own.status, own.body)] * 2


def test_application_mounted_below_another(ports):
    reply = ask(ports.plain, post("/mounted/v2/models/identity/infer", GOOD))
    assert reply.json["outputs"][0]["data"] == [0.10000000149011612, 2.0]
    assert ask(ports.plain, head("GET", "/mounted/v2/models/identity")).json["name"] == "identity"


def test_client_that_vanishes_under_another_server(ports):
    """Its memory goes back: any number of them leaves room for the next."""
    size = 8 << 20
    model, body, headers = binary_request("identity", size, parameters={"binary_data_output": True})
    request = post(f"/v2/models/{model}/infer", body, headers)
    for _ in range(5):
        with connected(ports.plain) as connection:
            connection.send(request[: size // 2])
            connection.reset()
    reply = ask(ports.plain, request)
    assert reply.status == 200
    assert reply.body.endswith(body[-size:])


@pytest.mark.parametrize("leave", ["reset", "close"])
def test_a_running_request_of_a_client_that_left_is_cancelled(ports, repository, leave):
    directory = repository / "until_cancelled"
    begun, cancelled = (directory / name for name in ("begun", "cancelled"))
    for mark in (begun, cancelled):
        mark.unlink(missing_ok=True)
    with connected(ports.plain) as connection:
        connection.send(post("/v2/models/until_cancelled/infer", GOOD))
        wait_until(begun.exists, "the request is not executed")
        getattr(connection, leave)()
    wait_until(cancelled.exists, "the model does not hear that the client has left")
    assert ask(ports.plain, post("/v2/models/identity/infer", GOOD)).status == 200
