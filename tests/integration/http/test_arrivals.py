"""Bodies that ASGI routes read: counted, bounded and given up like those that connections read themselves."""

import asyncio
import json
import select
import socket
import threading
from concurrent.futures import Future

import pytest
import uvicorn
import uvloop

from pybackend.frontend.flow import SLOW_AFTER_SECONDS, STALLED_SECONDS, ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.protocol.limits import BodyLimits
from tests.support.connection import binary_body, connected, head, post
from tests.support.engine import engine_on
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model

MIB = 1 << 20
LIMIT = 8 * MIB
INFER, GENERATE, LOAD = "/v2/models/m/infer", "/v2/models/m/generate", "/v2/repository/models/m/load"


class Place:
    """The same engine behind connections of its own, and behind a plain uvicorn."""

    def __init__(self, repository):
        self.repository = repository
        self.memory = ClientMemory(LIMIT)
        self.ports = Future()
        self.stop = threading.Event()

    async def serve(self):
        async with engine_on(self.repository, memory_limit_bytes=LIMIT, explicit=True, startup_models=("m",)) as engine:
            frontend = InferFrontend(engine, BodyLimits(), self.memory)
            app = make_app(frontend)
            own, own_socket = HttpServer(app, self.memory, frontend), bind("127.0.0.1", 0, "HTTP")
            await own.start(own_socket)
            plain_socket = socket.create_server(("127.0.0.1", 0))
            plain = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_config=None))
            serving = asyncio.create_task(plain.serve([plain_socket]))
            self.ports.set_result({"own": own_socket.getsockname()[1], "plain": plain_socket.getsockname()[1]})
            await asyncio.to_thread(self.stop.wait)
            plain.should_exit = True
            await serving
            await own.stop(asyncio.get_running_loop().time() + 5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    repository = tmp_path_factory.mktemp("arrivals")
    write_model(repository, "m", IDENTITY, identity_config())
    place = Place(repository)
    thread = threading.Thread(target=lambda: uvloop.run(place.serve()))
    thread.start()
    try:
        yield place
        assert place.memory.used_bytes == 0
    finally:
        place.stop.set()
        thread.join(60)


@pytest.fixture(params=["own", "plain"])
def port(request, place):
    return place.ports.result(60)[request.param]


def only(flows):
    (flow,) = flows
    return flow


def padded(path, size):
    return post(path, json.dumps({"IN": [1.5], "note": "a" * size}).encode())


def padded_form(path, size):
    part = b'--b\r\nContent-Disposition: form-data; name="IN"\r\n\r\n1.5\r\n--b--\r\n'
    return post(path, part + bytes(size), {"Content-Type": "multipart/form-data; boundary=b"})


COUNTED = pytest.mark.parametrize(("padded", "path"), [(padded, GENERATE), (padded_form, GENERATE), (padded, LOAD)])


@COUNTED
def test_incomplete_bodies_count(place, port, padded, path):
    """Two that do not fit together: one is refused as soon as that is clear, and the other can be completed."""
    whole = padded(path, 6 * MIB)
    with connected(port) as one, connected(port) as two:
        for connection in (one, two):
            connection.send(whole[:-10])
        (refused, *_), _, _ = select.select([one.socket, two.socket], [], [], 60)
        first, second = (one, two) if refused is one.socket else (two, one)
        reply = first.reply()
        assert reply.status == 503
        assert "(--http-memory-limit)" in reply.error
        assert place.memory.used_bytes <= LIMIT
        second.send(whole[-10:])
        assert second.reply().status == 200
    wait_until(lambda: place.memory.used_bytes == 0, "the account was not settled")


@COUNTED
def test_slow_senders_of_counted_bodies_make_room(place, port, padded, path, snapshot):
    whole = padded(path, 6 * MIB)
    with connected(port) as slow, connected(port) as quick:
        slow.send(whole[:-10])
        wait_until(lambda: place.memory.used_bytes > 6 * MIB - 100, "the body was not counted")
        for _ in range(SLOW_AFTER_SECONDS * 8):
            only(place.memory.counted).pace.advance(1, 0)
        quick.send(whole)
        assert quick.reply().status == 200
        reply = slow.reply()
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert reply.error == snapshot


def test_slow_senders_of_tensors_make_room(place):
    size = 6 * MIB
    item = {"name": "IN", "datatype": "FP32", "shape": [size // 4], "parameters": {"binary_data_size": size}}
    whole = post(INFER, *binary_body({"inputs": [item]}, bytes(size)))
    port = place.ports.result(60)["plain"]
    with connected(port) as slow, connected(port) as quick:
        slow.send(whole[:-10])
        wait_until(lambda: place.memory.sending, "the tensors do not arrive")
        sender = only(place.memory.sending)
        wait_until(lambda: sender.received_bytes == len(whole) - len(whole.partition(b"\r\n\r\n")[0]) - 14, "not read")
        for _ in range(SLOW_AFTER_SECONDS * 8):
            sender.pace.advance(1, 0)
        quick.send(whole)
        assert quick.reply().status == 200
        assert slow.reply().status == 503


def test_a_client_that_stalls_is_disconnected(place, port, snapshot):
    with connected(port) as client:
        client.send(padded_form(GENERATE, 100_000)[:-10])
        wait_until(lambda: place.memory.used_bytes > 90_000, "the body was not counted")
        for _ in range(4 * STALLED_SECONDS):  # what has come in the first second counts, too
            only(place.memory.counted).pace.advance(1, 0)
        reply = client.reply()  # at the next look of the clock
        assert reply.status == 503
        assert reply.error == snapshot
        assert client.at_end()


def test_a_client_that_leaves_frees_its_bytes(place, port):
    with connected(port) as client:
        client.send(padded_form(GENERATE, MIB)[:-10])
        wait_until(lambda: place.memory.used_bytes > MIB - 1000, "the body was not counted")
    wait_until(lambda: place.memory.used_bytes == 0, "the bytes of a client that left are still counted")


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=b"])
def test_no_more_than_the_model_needs_is_asked_for(port, kind):
    """The head says how large the body is: nothing of it is read if there cannot be so much."""
    with connected(port) as client:
        client.send(head("POST", GENERATE, {"Content-Length": 1 << 30, "Content-Type": kind}))
        assert client.reply().error.startswith("the body exceeds 16777216 bytes")
