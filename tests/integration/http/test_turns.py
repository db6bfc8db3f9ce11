"""Large requests and answers leave the event loop to others: counted in its turns, from the last byte on."""

import asyncio
import json
import re
import socket
from contextlib import asynccontextmanager

import pytest

from pybackend.engine.engine import ModelAdmission
from pybackend.frontend import slices
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.plugins import APIS, installed_apis
from pybackend.protocol.limits import BodyLimits
from tests.e2e.http.models import GENERATOR
from tests.support.connection import binary_body, post
from tests.support.engine import engine_on
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model

MIB = 1 << 20
LAST = 1000


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("turns")
    write_model(repository, "numbers", IDENTITY, identity_config("TYPE_INT8"))
    write_model(repository, "texts", IDENTITY, identity_config("TYPE_STRING"))
    config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_INT64", [2]))} ] output [ {tensors(OUT=("TYPE_INT64", [-1]))} ]
    """
    write_model(repository, "generator", GENERATOR, config)
    return repository


@asynccontextmanager
async def client_of(repository):
    """A client's socket, and the connection as the server sees it."""
    limits = BodyLimits()
    async with engine_on(repository) as engine:
        frontend = InferFrontend(engine, limits, ClientMemory(1 << 30))
        app = make_app(frontend, installed_apis(APIS))
        server = HttpServer(app, frontend.client_memory, frontend)
        sock = bind("127.0.0.1", 0, "HTTP")
        await server.start(sock)
        try:
            with socket.create_connection(sock.getsockname()) as client:
                client.setblocking(False)
                while not server.connections:  # noqa: ASYNC110  there is nothing else to wait for
                    await asyncio.sleep(0)
                yield client, next(iter(server.connections)), engine
        finally:
            await server.stop(asyncio.get_running_loop().time() + 5)


async def turns_until(condition):
    """How many turns of the loop it takes until a condition holds."""
    turns = 0
    while not condition():
        await asyncio.sleep(0)
        turns += 1
    return turns


def json_numbers():
    tensor = {"name": "IN", "datatype": "INT8", "shape": [MIB], "data": [7] * MIB}
    return post("/v2/models/numbers/infer", json.dumps({"inputs": [tensor]}).encode())


def json_texts():
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [MIB // 2], "data": ["a,b"] * (MIB // 2)}
    return post("/v2/models/texts/infer", json.dumps({"inputs": [tensor]}).encode())


def binary_texts():
    blob = b"\1\0\0\0a\2\0\0\0ab" * MIB
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [2 * MIB], "parameters": {"binary_data_size": len(blob)}}
    body, headers = binary_body({"inputs": [tensor]}, blob)
    return post("/v2/models/texts/infer", body, headers)


@pytest.mark.parametrize("request_", [json_numbers, json_texts, binary_texts])
def test_requests(run, monkeypatch, repository, request_):
    """From a request's last byte to its submission to the engine."""
    submitted = []
    submit = ModelAdmission.submit
    monkeypatch.setattr(ModelAdmission, "submit", lambda *args: submitted.append(submit(*args)) or submitted[-1])

    async def check():
        async with client_of(repository) as (client, connection, _engine):
            loop, data = asyncio.get_running_loop(), memoryview(request_())
            await loop.sock_sendall(client, data[:-LAST])
            await turns_until(lambda: connection.flow.received_bytes == len(data) - LAST)
            await loop.sock_sendall(client, data[-LAST:])
            await turns_until(lambda: connection.flow.received_bytes == len(data))
            assert await turns_until(lambda: submitted) > 20

    run(check())


def test_answers(run, repository):
    """From an answer's first byte to its last: the client reads all the time."""

    async def check():
        async with client_of(repository) as (client, *_):
            loop = asyncio.get_running_loop()
            tensor = {"name": "IN", "datatype": "INT64", "shape": [2], "data": [MIB, 0]}
            await loop.sock_sendall(
                client, post("/v2/models/generator/infer", json.dumps({"inputs": [tensor]}).encode())
            )
            received, pieces = await loop.sock_recv(client, 1 << 20), 0
            while not received.endswith(b"\r\n0\r\n\r\n"):
                received += await loop.sock_recv(client, 1 << 20)
                await asyncio.sleep(0)
                pieces += 1
            assert pieces > 50

    run(check())


def test_requests_that_are_refused_at_once(run, repository, monkeypatch):
    """Many of them in one read: each is answered in a turn of its own, in their order, and then the next read."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    count = 300

    async def check():
        async with client_of(repository) as (client, _, engine):
            loop, counts = asyncio.get_running_loop(), engine.refusals.counts
            requests = [post(f"/v2/models/nobody{number}/infer", b"{}") for number in range(count)]
            await loop.sock_sendall(client, b"".join(requests[:-1]))
            seen = 0
            while seen < count - 1:
                await asyncio.sleep(0)
                now = sum(counts.values())
                assert now - seen <= 1
                seen = now
            await loop.sock_sendall(client, requests[-1])
            received = b""
            while received.count(b"\r\n\r\n") < count or not received.endswith(b"}"):
                received += await loop.sock_recv(client, 1 << 20)
            names = [int(each) for each in re.findall(rb"'nobody(\d+)'", received)]
            assert names == list(range(count))

    run(check())
