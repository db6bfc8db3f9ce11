"""Heads of requests that the front end remembers: those that come again, and not those that differ each time."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from pybackend.engine.answers import Answers
from pybackend.frontend.access.api_keys import ApiKeys
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.groups import http_group
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import Restrictions
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.listening import bind
from pybackend.protocol.limits import BodyLimits
from tests.support.connection import head, post
from tests.support.engine import engine_on
from tests.support.reachable import texts_of
from tests.support.repositories import IDENTITY, identity_config, write_model

MOST = 20

BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0.5]}]}).encode()


@pytest.fixture(autouse=True)
def few_known_heads(monkeypatch):
    monkeypatch.setattr("pybackend.frontend.http.infer_frontend.MOST_KNOWN_HEADS", MOST)


def request(**headers):
    return post("/v2/models/identity/infer", BODY, headers)


async def answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)


def test_heads_that_differ_each_time_push_out_nobodys(tmp_path):
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_FP32"))

    async def main():
        limits = BodyLimits()
        async with engine_on(tmp_path) as engine:
            frontend = InferFrontend(engine, limits, KeptBytes(1 << 30))
            server = HttpServer(make_app(frontend), frontend)
            sock = bind("127.0.0.1", 0, "HTTP")
            await server.start(sock)
            ordinary, traced = [await asyncio.open_connection(*sock.getsockname()) for _ in range(2)]
            for _ in range(3):
                ordinary[1].write(request())
                await answer(ordinary[0])
            known = dict(frontend.heads)
            assert len(known) == 1
            for number in range(MOST + 10):
                traced[1].write(request(traceparent=f"00-{number:032x}-{number:016x}-01"))
                await answer(traced[0])
            assert frontend.heads == known
            for _, writer in (ordinary, traced):
                writer.close()
            await server.stop(asyncio.get_running_loop().time() + 5)

    asyncio.run(main())


def test_the_oldest_head_makes_room_for_a_new_one():
    engine = SimpleNamespace(answers={"http": Answers("200")})  # nothing else of it is used
    frontend = InferFrontend(engine, BodyLimits(), KeptBytes(1 << 30))
    for number in range(MOST + 5):
        frontend.remember(b"head %d" % number, None)
    assert len(frontend.heads) == MOST
    assert next(iter(frontend.heads)) == b"head 5"


KEY = "a-key-0123456789"


@pytest.mark.parametrize(
    "fields",
    [{"X-API-Key": KEY}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY, "cookie": "of-" + KEY}],
    ids=["key", "bearer", "cookie"],
)
@pytest.mark.parametrize("forwards", [None, "x-api-key|authorization"], ids=["", "forwarded"])
def test_credentials_are_not_kept(tmp_path, fields, forwards):
    """A head with credentials is remembered by a digest, if at all; and an idle connection keeps no head."""
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_FP32"))
    keys = tmp_path / "keys"
    keys.write_text(KEY)

    async def main():
        limits = BodyLimits()
        async with engine_on(tmp_path) as engine:
            guard = HttpGuard("http", Guard(ApiKeys(keys), Restrictions(()), http_group), engine.refusals)
            forwarded = forwards and ForwardedHeaders(forwards)
            frontend = InferFrontend(engine, limits, KeptBytes(1 << 30), guard=guard, forwards=forwarded)
            server = HttpServer(make_app(frontend), frontend)
            sock = bind("127.0.0.1", 0, "HTTP")
            await server.start(sock)
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            for _ in range(5):
                writer.write(request(**fields))
                await answer(reader)
            assert len(frontend.heads) == (not forwards)
            writer.write(head("GET", "/v2", fields))
            await answer(reader)
            others = await asyncio.open_connection(*sock.getsockname())
            others[1].write(request(**{name: value.replace("a-key", "b-key") for name, value in fields.items()}))
            assert (await others[0].readline()).startswith(b"HTTP/1.1 401 ")
            connection, *_ = server._connections()
            kept = list(texts_of(frontend.heads, vars(connection), guard))
            assert b"x-api-key" in kept
            assert [each for each in kept if KEY.encode() in each] == []
            for each in (writer, others[1]):
                each.close()
            await server.stop(asyncio.get_running_loop().time() + 5)

    asyncio.run(main())
