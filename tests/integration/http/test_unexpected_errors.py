"""A mistake of the server's own: the client gets its 500, whatever it has sent so far, and the server goes on."""

import asyncio
import json
import threading
from concurrent.futures import Future

import pytest
import uvloop

from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.protocol.limits import BodyLimits
from tests.support.connection import binary_body, connected, post, post_chunked
from tests.support.engine import engine_on
from tests.support.repositories import IDENTITY, identity_config, write_model

PATH = "/v2/models/m/infer"
TENSOR = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.5]}
GOOD = json.dumps({"inputs": [TENSOR]}).encode()


class BrokenAccount(ClientMemory):
    """An account that cannot count beyond a limit."""

    def count(self, flow):
        if flow.held_bytes > self.limit_bytes:
            raise ZeroDivisionError
        return super().count(flow)


class BrokenHeaders:
    """Chooses headers, and fails if there is one that it does not like."""

    def of(self, headers):
        if any(name.lower() == b"x-break" for name, _ in headers):
            raise ZeroDivisionError


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    repository = tmp_path_factory.mktemp("unexpected")
    write_model(repository, "m", IDENTITY, identity_config())
    found, stop = Future(), threading.Event()

    async def serve():
        async with engine_on(repository) as engine:
            frontend = InferFrontend(engine, BodyLimits(), BrokenAccount(100_000), forwards=BrokenHeaders())
            server = HttpServer(make_app(frontend), frontend.client_memory, frontend)
            sock = bind("127.0.0.1", 0, "HTTP")
            await server.start(sock)
            found.set_result(sock.getsockname()[1])
            await asyncio.to_thread(stop.wait)
            await server.stop(asyncio.get_running_loop().time() + 5)

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    try:
        yield found.result(60)
    finally:
        stop.set()
        thread.join(60)


LARGE = b" " * 200_000
BINARY = binary_body({"inputs": [TENSOR], "filler": "a" * 200_000}, bytes(200_000))
REQUESTS = {
    "at its head": post(PATH, GOOD, {"X-Break": "1"}),
    "at its head, with a large body": post(PATH, LARGE, {"X-Break": "1"}),
    "in a large body": post(PATH, GOOD + LARGE),
    "in chunks": post_chunked(PATH, [GOOD, LARGE]),
    "in its JSON part": post(PATH, *BINARY),
    "in a body for ASGI": post("/v2/models/m/generate", GOOD + LARGE),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_the_client_gets_an_answer(port, request_):
    with connected(port) as connection:
        connection.send(post(PATH, GOOD) + request_)
        assert connection.reply().status == 200
        reply = connection.reply()
        assert (reply.status, reply.error) == (500, "internal error: see the server's log")
        assert connection.at_end()
    with connected(port) as connection:
        connection.send(post(PATH, GOOD))
        assert connection.reply().status == 200
