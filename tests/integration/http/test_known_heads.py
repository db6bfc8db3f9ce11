"""Heads of requests that the front end remembers: those that come again, and not those that differ each time."""

import asyncio
import json
from random import Random

import pytest

from pybackend.frontend.access.api_keys import ApiKeys
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import Restrictions
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http import fast_path
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.request_reader import RequestReader
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.plugins import installed_apis
from pybackend.protocol.limits import BodyLimits
from tests.support.connection import head, post
from tests.support.engine import engine_on
from tests.support.reachable import texts_of
from tests.support.repositories import IDENTITY, identity_config, write_model

MOST = 20

BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0.5]}]}).encode()


def request(**headers):
    return post("/v2/models/identity/infer", BODY, headers)


async def answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)


@pytest.fixture
def parsed(monkeypatch):
    """How many heads were parsed."""
    parsed = []
    read_head = RequestReader.read_head
    monkeypatch.setattr(RequestReader, "read_head", lambda *args: parsed.append(args) or read_head(*args))
    return parsed


@pytest.fixture
def serve(tmp_path, monkeypatch, run):
    """Runs a function with two connections to a server that remembers few heads."""
    monkeypatch.setattr("pybackend.frontend.http.fast_path.MOST_HEADS", MOST)
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_FP32"))

    def serve(function):
        async def main():
            limits, kept = BodyLimits(), ClientMemory(1 << 30)
            async with engine_on(tmp_path) as engine:
                frontend = InferFrontend(engine, limits, kept)
                server = HttpServer(make_app(frontend), kept, frontend)
                sock = bind("127.0.0.1", 0, "HTTP")
                await server.start(sock)
                clients = [await asyncio.open_connection(*sock.getsockname()) for _ in range(2)]
                try:
                    await function(*clients)
                finally:
                    for _, writer in clients:
                        writer.close()
                    await server.stop(asyncio.get_running_loop().time() + 5)

        run(main())

    return serve


async def ask(client, **headers):
    client[1].write(request(**headers))
    await answer(client[0])


def test_heads_that_differ_each_time_push_out_nobodys(serve, parsed):
    async def check(ordinary, other):
        for _ in range(3):
            await ask(ordinary)
        assert len(parsed) == 2
        for number in range(MOST + 10):
            await ask(other, origin=f"http://{number}")
        assert len(parsed) == 2 + MOST + 10
        await ask(ordinary)
        assert len(parsed) == 2 + MOST + 10

    serve(check)


UNREAD = {
    "User-Agent": "client/{}",
    "X-Request-ID": "{:032x}",
    "traceparent": "00-{0:032x}-{0:016x}-01",
    "tracestate": "vendor={}",
    "x-b3-traceid": "{:032x}",
    "X-Forwarded-For": "10.0.0.{}, 10.1.1.1",
    "Cookie": "session={}",
    "authorization": "Bearer {}",
    "Accept": "*/*;q=0.{}",
}


def test_fields_that_nobody_reads_may_differ(serve, parsed):
    async def check(client, _other):
        for names in ([], list(UNREAD), *([each] for each in UNREAD)):
            for number in range(4):
                await ask(client, **{name: UNREAD[name].format(number) for name in names})
        assert len(parsed) == 2

    serve(check)


def test_a_head_that_comes_again_to_the_last_byte_is_known_as_it_is(serve, parsed, monkeypatch):
    left_out = []
    monkeypatch.setattr(fast_path, "_fields_but", lambda _read: lambda new, head: left_out.append(head) or head)

    async def check(client, _other):
        for _ in range(10):
            await ask(client, user_agent="the same")
        assert len(left_out) <= 6, (
            "each looks for it and is parsed twice; then it is looked for twice until it is known"
        )

    serve(check)


MALFORMED = [
    "Broken: a\x01b",
    "No colon",
    "Bro ken: a",
    ": a",
    "Broken : a",
    " folded",
    "Broken: a\n b",
    "Broken: a\x7fb",
]


def test_malformed_fields_are_refused_after_well_formed_ones_were_known(serve):
    async def check(client, other):
        for number in range(5):
            await ask(client, broken=str(number))
        whole = request(broken="1")
        assert b"broken: 1" in whole
        for lines in MALFORMED:
            reader, writer = await asyncio.open_connection(*other[1].get_extra_info("peername"))
            writer.write(whole.replace(b"broken: 1", lines.encode()))
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 "), lines
            writer.close()

    serve(check)


def test_clients_that_take_turns_are_both_remembered(serve, parsed):
    """As behind a proxy, which sends the requests of several clients over one connection."""

    async def check(client, _other):
        for _ in range(5):
            await ask(client, origin="one")
            await ask(client, origin="two")
        assert len(parsed) == 4

    serve(check)


def test_more_heads_than_there_is_room_for_are_mostly_known(serve, parsed, monkeypatch):
    """All of them come in turns, and a few more than are remembered."""
    monkeypatch.setattr("pybackend.recurring.random", Random(1).random)

    async def check(client, _other):
        heads = MOST + 2
        for _ in range(4):
            for number in range(heads):
                await ask(client, origin=str(number))
        before = len(parsed)
        for number in range(heads):
            await ask(client, origin=str(number))
        assert len(parsed) - before < heads // 2

    serve(check)


KEY = "a-key-0123456789"


@pytest.mark.parametrize(
    "fields",
    [{"X-API-Key": KEY}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY, "cookie": "of-" + KEY}],
    ids=["key", "bearer", "cookie"],
)
@pytest.mark.parametrize("forwards", [None, "x-api-key|authorization"], ids=["", "forwarded"])
def test_credentials_are_not_kept(tmp_path, parsed, fields, forwards):
    """A head with credentials is remembered by a digest, if at all; and an idle connection keeps no head."""
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_FP32"))
    keys = tmp_path / "keys"
    keys.write_text(KEY)

    async def main():
        limits = BodyLimits()
        async with engine_on(tmp_path) as engine:
            guard = HttpGuard(
                "http", Guard(ApiKeys(keys), Restrictions(()), installed_apis().group_of), engine.refusals
            )
            forwarded = forwards and ForwardedHeaders(forwards)
            memory = ClientMemory(1 << 30)
            frontend = InferFrontend(engine, limits, memory, guard=guard, forwards=forwarded)
            server = HttpServer(make_app(frontend), memory, frontend, guard=guard)
            sock = bind("127.0.0.1", 0, "HTTP")
            await server.start(sock)
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            for _ in range(5):
                writer.write(request(**fields))
                await answer(reader)
            assert len(parsed) == (5 if forwards else 2)
            writer.write(head("GET", "/v2", fields))
            await answer(reader)
            others = await asyncio.open_connection(*sock.getsockname())
            others[1].write(request(**{name: value.replace("a-key", "b-key") for name, value in fields.items()}))
            assert (await others[0].readline()).startswith(b"HTTP/1.1 401 ")
            kept = list(texts_of(vars(server), *map(vars, server.connections), guard))
            assert b"x-api-key" in kept
            assert [each for each in kept if KEY.encode() in each] == []
            for each in (writer, others[1]):
                each.close()
            await server.stop(asyncio.get_running_loop().time() + 5)

    asyncio.run(main())
