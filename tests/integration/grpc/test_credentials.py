"""Credentials in calls: they open the door, and are not kept behind it. Metadata as gRPC's own servers read them."""

import asyncio

import hpack
import pytest
import uvloop

from pybackend.frontend.access.api_keys import NO_KEY, WRONG_KEY, ApiKeys
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.groups import grpc_group
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import Restrictions, concealed
from pybackend.frontend.grpc.head import RESTRICTED_PREFIX, CallPolicy
from pybackend.settings import ApiGroup, Restriction
from tests.support.engine import engine_on
from tests.support.grpc_calls import SERVER_LIVE, framed, grpc_port
from tests.support.reachable import texts_of

KEY = "a-key-0123456789"
SECRET = "s3cret-0123456789"
RESTRICTED = RESTRICTED_PREFIX.decode() + "admin"
OPEN = [(RESTRICTED, SECRET)]


@pytest.fixture
def run(tmp_path):
    """Runs a test's coroutine with a port that needs a key, and another header for health."""

    def run(scenario, forwards=""):
        file = tmp_path / "keys"
        file.write_text(KEY)

        async def serve():
            restriction = Restriction(frozenset({ApiGroup.HEALTH}), "admin", SECRET)
            restrictions = Restrictions([restriction], RESTRICTED_PREFIX.decode(), "expecting header")
            guard = Guard(ApiKeys(file), restrictions, grpc_group)
            policy = CallPolicy(guard, ForwardedHeaders(forwards) if forwards else None)
            async with (
                engine_on(tmp_path) as engine,
                grpc_port(engine, policy=policy) as port,
                await port.connect() as client,
            ):
                await scenario(port, client)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(serve(), 60))

    return run


async def status(client, *fields):
    return await client.status(client.call(SERVER_LIVE, framed(b""), *fields))


WRONG = concealed(b"x-api-key", KEY.encode()).decode()


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ([("x-api-key", KEY)], ("0", "")),
        ([("authorization", f"Bearer {KEY}")], ("0", "")),
        ([("Authorization", f"bearer  {KEY} ")], ("0", "")),
        ([("X-Api-Key", f" {KEY}\t")], ("0", "")),
        ([("authorization", f"Basic {KEY}")], ("16", NO_KEY)),
        ([("cookie", KEY)], ("16", NO_KEY)),
        ([("x-api-key", KEY), ("X-API-Key", KEY)], ("16", NO_KEY)),
        ([("x-api-key", KEY.upper())], ("16", WRONG_KEY)),
        ([("x-api-key", WRONG)], ("16", WRONG_KEY)),
        ([("authorization", f"Bearer {WRONG}")], ("16", WRONG_KEY)),
        ([("x-api-key", KEY + " " + KEY)], ("16", WRONG_KEY)),
    ],
)
@pytest.mark.parametrize("forwards", ["", "authorization|x-api-key"], ids=["", "forwarded"])
def test_what_opens(run, fields, wanted, forwards):
    async def scenario(_port, client):
        assert await status(client, *OPEN, *fields) == wanted
        assert await status(client, *fields, *OPEN) == wanted

    run(scenario, forwards)


def test_a_restricted_group_needs_its_header(run):
    async def scenario(_port, client):
        key = ("x-api-key", KEY)
        assert await status(client, key, (RESTRICTED.title(), f"{SECRET} ")) == ("0", "")
        for wrong in (SECRET[:-1], concealed(RESTRICTED.encode(), SECRET.encode()).decode()):
            assert await status(client, key, (RESTRICTED, wrong)) == ("14", f"expecting header '{RESTRICTED}'")

    run(scenario)


def test_credentials_are_not_kept(run):
    """Neither in the table of fields that the connection's client has filled, nor in remembered heads."""

    async def scenario(port, client):
        usual = [(":method", "POST"), (":scheme", "http"), (":path", SERVER_LIVE), (":authority", "x")]
        usual += [("content-type", "application/grpc"), ("te", "trailers"), ("cookie", "session-" + KEY)]
        encoder = hpack.Encoder()
        for key in (("x-api-key", KEY), ("authorization", f"Bearer {KEY}")):
            for _ in range(3):
                assert await status(client, *OPEN, key) == ("0", "")
                stream = client.open_by(encoder.encode([*usual, *OPEN, key]))
                client.send(stream, framed(b""), ended=True)
                assert await client.status(stream) == ("0", "")
            for count in range(4):  # with a field of its own, a head becomes known by other keys
                own = [*usual, ("x-request-id", str(count)), *OPEN, key]
                for fields in (own, [(*field, True) for field in own]):
                    stream = client.open_by(encoder.encode(fields, huffman=count % 2 == 0))
                    client.send(stream, framed(b""), ended=True)
                    assert await client.status(stream) == ("0", "")
        (connection,) = port.frontend.connections
        kept = list(texts_of(connection.http2, port.frontend.policy))
        assert b"x-api-key" in kept
        huffman = hpack.Encoder().encode([("x", KEY)])[4:]
        found = [each for each in kept if any(secret in each for secret in (KEY.encode(), SECRET.encode(), huffman))]
        assert found == []

    run(scenario)


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        (("x-user", "ann "), "0"),
        (("X-User", "\tann"), "0"),
        (("x-user", ""), "0"),
        (("Connection", "close"), "RST_STREAM"),
        (("x-user", "a\nb"), "RST_STREAM"),
        (("authorization", "a\nb"), "RST_STREAM"),
        (("x user", "a"), "RST_STREAM"),
    ],
)
def test_blanks_and_capitals(run, field, wanted):
    """gRPC's own servers trim values and bear capitals; all other rules of HTTP/2 hold."""

    async def scenario(_port, client):
        stream = client.call(SERVER_LIVE, framed(b""), *OPEN, ("x-api-key", KEY), field)
        await client.until(lambda: stream in client.trailers or stream in client.resets)
        found = client.trailers[stream]["grpc-status"] if stream in client.trailers else "RST_STREAM"
        assert found == wanted

    run(scenario)
