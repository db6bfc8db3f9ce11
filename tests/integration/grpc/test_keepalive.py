"""PINGs in both directions, and connections that become old; the clock of connections is moved by hand."""

import asyncio
from contextlib import asynccontextmanager
from math import inf

import pytest
import uvloop

from pybackend.frontend.flow import IDLE_SECONDS
from pybackend.settings import GrpcSettings, KeepaliveSettings
from tests.support import http2
from tests.support.engine import engine_on
from tests.support.grpc_calls import REFLECTION, SERVER_LIVE, framed, grpc_port

QUESTION = framed(b"\x3a\x01*")  # of a reflection service: its services
ENHANCE_YOUR_CALM = b"\0\0\0\x0b"


@pytest.fixture
def port(tmp_path):
    """Runs a test's coroutine with a port that has these settings; there are no models."""

    def run(scenario, **keepalive):
        settings = GrpcSettings(keepalive=KeepaliveSettings(**{"max_ping_strikes": 0, **keepalive}))

        async def serve():
            async with engine_on(tmp_path) as engine, grpc_port(engine, settings=settings) as opened:
                await scenario(opened)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(serve(), 60))

    return run


@asynccontextmanager
async def client_of(port):
    async with await port.connect() as client:
        await client.until(lambda: port.frontend.connections)
        yield client


async def with_open_stream(client):
    stream = client.open(REFLECTION)
    client.send(stream, QUESTION)
    await client.until(lambda: client.bodies.get(stream))
    return stream


def ping(client, count=1):
    for _ in range(count):
        client.write(http2.frame(http2.PING, 0, 0, b"12345678"))


@pytest.mark.spec("srv-G14")
def test_a_client_that_pings_too_often(port):
    """The first one is free; two more are forgiven; gRPC's clients know the text."""

    async def scenario(port):
        async with client_of(port) as client:
            await with_open_stream(client)
            ping(client, 3)
            await client.until(lambda: len(client.pongs) == 3)
            assert not client.goaways
            ping(client)
            await client.closed()
            assert [each[4:] for each in client.goaways] == [ENHANCE_YOUR_CALM + b"too_many_pings"]

    port(scenario, max_ping_strikes=2, min_ping_interval_s=300)


@pytest.mark.spec("srv-G14")
def test_answers_clear_the_record(port):
    async def scenario(port):
        async with client_of(port) as client:
            stream = await with_open_stream(client)
            for _ in range(5):
                before = len(client.bodies[stream]), len(client.pongs)
                ping(client, 3)
                client.send(stream, QUESTION)
                await client.until(lambda before=before: len(client.bodies[stream]) > before[0])
                await client.until(lambda before=before: len(client.pongs) == before[1] + 3)
            assert not client.goaways

    port(scenario, max_ping_strikes=2, min_ping_interval_s=300)


@pytest.mark.spec("srv-G14")
@pytest.mark.parametrize("permitted", [False, True])
def test_pings_without_calls(port, permitted):
    """They may come every two hours, or as often as others if that is permitted."""

    async def scenario(port):
        async with client_of(port) as client:
            ping(client, 10)
            if permitted:
                await client.until(lambda: len(client.pongs) == 10)
                assert not client.goaways
            else:
                await client.closed()
                assert client.goaways[-1].endswith(b"too_many_pings")

    port(scenario, max_ping_strikes=1, min_ping_interval_s=0, permit_without_calls=permitted)


@pytest.mark.spec("srv-G14")
def test_a_silent_client_is_asked_and_closed(port):
    async def scenario(port):
        async with client_of(port) as client:
            await with_open_stream(client)
            (connection,) = port.frontend.connections
            port.advance(9)
            assert not connection.http2.has_output
            connection.peer.transport.pause_reading()  # the answer does not arrive
            port.advance(1)
            port.advance(4)
            assert not connection.peer.transport.is_closing()
            port.advance(1)
            assert connection.peer.transport.is_closing()
            await client.closed()

    port(scenario, time_s=10, timeout_s=5)


@pytest.mark.spec("srv-G14")
def test_a_client_that_answers_stays(port):
    """And is asked twice only as long as nothing is sent to it, then as often as any other silent client."""

    async def scenario(port):
        async with client_of(port) as client:
            stream = await with_open_stream(client)
            for asked in (1, 2, 2, 2):
                port.advance(10)
                await client.settled()
                assert client.asked == asked
            client.send(stream, QUESTION)
            await client.settled()
            for asked in (3, 4, 4):
                port.advance(10)
                await client.settled()
                assert client.asked == asked
            port.advance(IDLE_SECONDS)
            await client.settled()
            assert client.asked == 5

    port(scenario, time_s=10, timeout_s=5, max_pings_without_data=2)


@pytest.mark.spec("srv-G14")
@pytest.mark.parametrize("permitted", [False, True])
def test_clients_without_calls_are_asked_if_that_is_permitted(port, permitted):
    async def scenario(port):
        async with client_of(port) as client:
            await client.settled()
            port.advance(10)
            await client.settled()
            assert client.asked == (1 if permitted else 0)

    port(scenario, time_s=10, permit_without_calls=permitted)


@pytest.mark.spec("srv-G14")
def test_an_old_connection_without_calls_ends(port):
    async def scenario(port):
        async with client_of(port) as client:
            assert (await client.status(client.call(SERVER_LIVE, framed(b""))))[0] == "0"
            port.advance(89)
            await client.settled()
            assert not client.goaways
            port.advance(22)
            await client.closed()
            assert [each[4:8] for each in client.goaways] == [b"\0\0\0\0"] * 2

    port(scenario, max_age_s=100)


@pytest.mark.spec("srv-G14")
@pytest.mark.parametrize("grace_s", [50, inf])
def test_calls_of_an_old_connection(port, grace_s):
    """They go on, for as long as the grace lasts."""

    async def scenario(port):
        async with client_of(port) as client:
            stream = await with_open_stream(client)
            port.advance(111)
            await client.until(lambda: len(client.goaways) == 2)  # the second one when it has confirmed the first
            size = len(client.bodies[stream])
            client.send(stream, QUESTION)
            await client.until(lambda: len(client.bodies[stream]) > size)
            port.advance(29)
            await client.settled()
            assert stream not in client.trailers
            port.advance(32)
            if grace_s == inf:
                await client.settled()
                client.send(stream, b"", ended=True)
                assert (await client.status(stream))[0] == "0"
            else:
                status, message = await client.status(stream)
                assert status == "14"
                assert "--grpc-max-connection-age" in message
            await client.closed()

    port(scenario, max_age_s=100, max_age_grace_s=grace_s)
