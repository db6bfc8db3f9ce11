"""Calls as frames: what a client gets back, what the server holds, and when it loses its patience."""

import asyncio
import gzip
from contextlib import asynccontextmanager

import pytest
import uvloop
from tritonclient.grpc import service_pb2

from pybackend.engine.admission import CLIENT
from pybackend.frontend.flow import IDLE_SECONDS, SLOW_AFTER_SECONDS, STALLED_SECONDS
from pybackend.protocol.grpc.message import written_varint
from tests.support import http2
from tests.support.engine import engine_on
from tests.support.grpc_calls import INFER, REFLECTION, SERVER_LIVE, STREAM_INFER, framed, grpc_port
from tests.support.repositories import IDENTITY, identity_config, write_model

WINDOW = 4  # SETTINGS_INITIAL_WINDOW_SIZE
STOPPING = "GRPC server is shutting down and has stopped accepting new requests."


@pytest.fixture
def port(tmp_path):
    """Runs a test's coroutine with a port; there are no models."""

    def run(scenario, **options):
        async def serve():
            async with engine_on(tmp_path) as engine, grpc_port(engine, **options) as opened:
                await scenario(opened)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(serve(), 60))

    return run


@asynccontextmanager
async def client_of(port, **settings):
    async with await port.connect(**settings) as client:
        await client.settled()
        yield client


def held(port):
    """Bytes in the account, and bytes that clients may not send again yet."""
    (connection,) = port.frontend.connections
    return port.frontend.client_memory.used_bytes, connection.http2.unreturned_bytes


QUESTION = b"\x3a\x01*"  # of a reflection service: its services


def infer_message(nbytes, model="nobody"):
    request = service_pb2.ModelInferRequest(model_name=model, id="a")
    request.inputs.add(name="IN", datatype="UINT8", shape=[nbytes])
    request.raw_input_contents.append(bytes(nbytes))
    return framed(request.SerializeToString())


ENDS = {
    "whole": lambda client: client.call(INFER, infer_message(100_000)),
    "in parts": lambda client: send_parts(client, INFER, infer_message(1_000_000), 16_384),
    "byte by byte": lambda client: send_parts(client, INFER, infer_message(500), 1),
    "cut": lambda client: client.call(INFER, infer_message(100_000)[:-1]),
    "bad compression": lambda client: client.call(INFER, framed(b"x" * 100_000, 1), ("grpc-encoding", "gzip")),
    "compression without encoding": lambda client: client.call(INFER, framed(b"x" * 100_000, 1)),
    "wrong flag": lambda client: client.call(INFER, framed(b"x" * 100_000, 7)),
    "larger than any message": lambda client: client.call(INFER, b"\0\xff\xff\xff\xff" + b"x" * 100_000),
    "no method": lambda client: client.call("/a.B/C", infer_message(100_000)),
    "no such encoding": lambda client: client.call(INFER, infer_message(100_000), ("grpc-encoding", "snappy")),
    "two messages": lambda client: client.call(INFER, infer_message(10) * 2),
    "many messages of a stream": lambda client: client.call(STREAM_INFER, infer_message(10) * 500),
    "a cut stream": lambda client: client.call(STREAM_INFER, infer_message(90_000) * 3 + b"\0\0"),
    "questions": lambda client: client.call(REFLECTION, framed(QUESTION) * 50),
    "deadline": lambda client: open_with_part(client, ("grpc-timeout", "50m")),
}


def send_parts(client, path, data, nbytes):
    stream = client.open(path)
    for at in range(0, len(data), nbytes):
        client.send(stream, data[at : at + nbytes], ended=at + nbytes >= len(data))
    return stream


def open_with_part(client, *fields):
    stream = client.open(INFER, *fields)
    client.send(stream, framed(b"x" * 200_000)[:100_000])
    return stream


@pytest.mark.parametrize("begin", ENDS.values(), ids=ENDS)
def test_every_byte_is_given_back(port, begin):
    async def scenario(port):
        async with client_of(port) as client:
            await client.status(begin(client))
            await client.settled()
            assert held(port) == (0, 0)
            assert (await client.status(client.call(SERVER_LIVE, framed(b""))))[0] == "0"

    port(scenario)


def test_bytes_of_cancelled_calls_and_lost_connections(port):
    async def scenario(port):
        async with client_of(port) as client:
            stream = open_with_part(client)
            await client.settled()
            assert held(port) == (99_995, 0)  # without the prefix of the message
            client.write(http2.frame(http2.RST_STREAM, 0, stream, http2.u32(8)))
            await client.settled()
            assert held(port) == (0, 0)
            open_with_part(client)
            await client.settled()
        await ended(port)
        assert port.frontend.client_memory.used_bytes == 0

    port(scenario)


async def ended(port):
    while port.frontend.connections:
        port.frontend.ended.clear()
        await port.frontend.ended.wait()


def test_messages_beyond_the_memory_for_slow_clients_are_refused(port):
    async def scenario(port):
        async with client_of(port) as client:
            streams = [open_with_part(client) for _ in range(4)]
            status, message = await client.status(streams[-1])
            assert status == "14"
            assert message.startswith("the server is overloaded: it holds 299985 bytes")
            assert port.frontend.engine.refusals.counts["grpc", "", "unavailable"] == 1

    port(scenario, memory_limit_bytes=350_000)


def test_waiting_messages_count_as_well(port):
    """A stream whose answers are not read takes no further messages; they lie in the server all the same."""

    async def scenario(port):
        async with client_of(port, **{f"id_{WINDOW}": 0}) as client:
            stream = client.open(STREAM_INFER)
            client.send(stream, infer_message(10) * 10_000)
            client.send(stream, infer_message(100_000) * 3)
            (connection,) = port.frontend.connections
            while (
                port.frontend.client_memory.used_bytes <= connection.peer.flow.held_bytes + 256 * 1024
            ):  # the answers count too
                await client.settled()
            assert connection.peer.flow.held_bytes > 300_000

    port(scenario)


# Patience


def test_a_call_that_is_never_read_is_reset(port):
    async def scenario(port):
        async with client_of(port, **{f"id_{WINDOW}": 0}) as client:
            stream = client.call(SERVER_LIVE, framed(b""))
            await client.settled()
            port.advance(STALLED_SECONDS)
            await client.settled()
            assert not client.resets
            port.advance(STALLED_SECONDS)
            await client.until(lambda: stream in client.resets)
            assert not next(iter(port.frontend.connections)).http2.streams

    port(scenario)


def test_who_alternates_between_two_tasks_is_slow_at_both(port):
    """A client that leaves its answers unread and cuts a frame every other second has the pace of one that does
    nothing."""

    async def scenario(port):
        async with client_of(port, **{f"id_{WINDOW}": 0}) as client:
            stream = client.open(STREAM_INFER)
            client.send(stream, infer_message(10) * 100)
            (connection,) = port.frontend.connections
            while not connection.http2.waiting_bytes:
                await client.settled()
            frame = http2.frame(http2.PING, 0, 0, b"12345678")
            for _ in range(SLOW_AFTER_SECONDS):
                client.write(frame[:10])
                while not connection.http2.is_amid_frame:  # noqa: ASYNC110  there is nothing else to wait for
                    await asyncio.sleep(0)
                port.advance(1)
                client.write(frame[10:])
                await client.settled()
                port.advance(1)
            assert connection.peer.flow.pace.is_slow

    port(scenario)


def test_a_call_that_sends_no_message(port):
    async def scenario(port):
        async with client_of(port) as client:
            silent = [client.open(INFER), client.open(SERVER_LIVE)]
            idle = [client.open(STREAM_INFER), client.open(REFLECTION)]  # these may be silent
            await client.settled()
            port.advance(STALLED_SECONDS)
            port.advance(STALLED_SECONDS)
            for stream in silent:
                status, message = await client.status(stream)
                assert (status, message) == ("4", "the client has sent no part of its message for a minute")
            assert not client.trailers.keys() & set(idle)
            assert (await client.status(client.call(SERVER_LIVE, framed(b""))))[0] == "0"

    port(scenario)


UNFINISHED = {
    "half a preface": http2.PREFACE[:10],
    "half a frame": http2.PREFACE + http2.settings() + http2.frame(http2.HEADERS, 4, 1, bytes(100))[:50],
    "half a header block": http2.PREFACE + http2.settings() + http2.headers(1, flags=0),
}


@pytest.mark.parametrize("data", UNFINISHED.values(), ids=UNFINISHED)
def test_frames_that_do_not_end(port, data):
    async def scenario(port):
        reader, writer = await asyncio.open_connection(*port.address)
        writer.write(data)
        async with client_of(port):
            port.advance(STALLED_SECONDS - 1)
            assert len(port.frontend.connections) == 2
            port.advance(2)
            port.advance(1)
        while await reader.read(1000):
            pass
        writer.close()

    port(scenario)


def test_idle_connections_are_closed(port):
    async def scenario(port):
        async with client_of(port) as client, client_of(port) as busy:
            busy.open(STREAM_INFER)
            await busy.settled()
            port.advance(IDLE_SECONDS)
            await client.closed()
            assert len(client.goaways) == 2
            await busy.settled()  # it answers PING
            port.advance(100)
            await busy.settled()

    port(scenario)


def test_a_client_that_is_gone_without_a_word(port):
    async def scenario(port):
        async with client_of(port) as client:
            client.open(STREAM_INFER)
            await client.settled()
            port.advance(IDLE_SECONDS)
            port.advance(20)  # nobody answers the PING
            await client.closed()

    port(scenario)


def test_a_client_of_http_1(port):
    async def scenario(port):
        reader, writer = await asyncio.open_connection(*port.address)
        writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"this port serves gRPC" in answer
        writer.close()

    port(scenario)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"\0" * 1000, b"GET "])
def test_garbage(port, garbage):
    async def scenario(port):
        reader, writer = await asyncio.open_connection(*port.address)
        writer.write(garbage)
        answer = await reader.read()
        assert b"HTTP/2" in answer
        assert port.frontend.engine.refusals.counts["grpc", "", "malformed"] == 1
        writer.close()

    port(scenario)


# Heads


HEADS = {
    "GET": ({":method": "GET"}, "405"),
    "JSON": ({"content-type": "application/grpc+json"}, "415"),
    "gRPC-Web": ({"content-type": "application/grpc-web"}, "415"),
    "no type": ({"content-type": ""}, "415"),
    "protobuf": ({"content-type": "application/grpc+proto"}, "0"),
    "parameters": ({"content-type": "application/grpc; charset=utf-8"}, "0"),
    "timeout": ({"grpc-timeout": "1s"}, "13"),
    "long timeout": ({"grpc-timeout": "99999999H"}, "0"),
    "no time at all": ({"grpc-timeout": "0n"}, "4"),
    "encoding": ({"grpc-encoding": "br"}, "12"),
    "service": ({":path": "/inference.Guess/ServerLive"}, "12"),
    "path": ({":path": "/"}, "12"),
}


@pytest.mark.parametrize(("fields", "status"), HEADS.values(), ids=HEADS)
def test_heads(port, fields, status):
    async def scenario(port):
        async with client_of(port) as client:
            stream = client.open(SERVER_LIVE, *fields.items())
            await client.settled()
            client.send(stream, framed(b""), ended=True) if stream not in client.trailers else None
            assert (await client.status(stream))[0] == status
            refused = sum(port.frontend.engine.refusals.counts.values())
            assert refused == (status not in {"0", "4"})

    port(scenario)


def test_an_answer_of_a_client_that_goes_on_sending(port):
    """The call is over, and the client is asked to stop, even if its answer had to wait for a window."""

    async def scenario(port):
        async with client_of(port, **{f"id_{WINDOW}": 0}) as client:
            stream = client.open(SERVER_LIVE)
            client.send(stream, framed(b""))
            await client.settled()
            assert not client.resets
            client.write(http2.frame(http2.WINDOW_UPDATE, 0, stream, http2.u32(1000)))
            await client.until(lambda: stream in client.resets)
            assert client.trailers[stream]["grpc-status"] == "0"

    port(scenario)


# The end


def test_calls_on_their_way_when_the_server_begins_to_stop_are_answered(port):
    async def scenario(port):
        async with client_of(port) as client:
            assert await client.status(client.call(SERVER_LIVE, framed(b""))) == ("0", "")
            port.frontend.stop_listening()
            assert not client.goaways
            for stream in [client.call(SERVER_LIVE, framed(b"")) for _ in range(3)]:
                assert await client.status(stream) == ("0", "")
            await client.closed()
            assert len(client.goaways) == 2

    port(scenario)


def test_shutdown_ends_calls_that_wait_for_messages(port):
    async def scenario(port):
        async with client_of(port) as client:
            waiting = [client.open(STREAM_INFER), client.open(REFLECTION), client.open(INFER), open_with_part(client)]
            await client.settled()
            port.frontend.stop_listening()
            await client.settled()
            assert client.goaways
            assert not client.trailers, "they have time to end"
            port.frontend.close_idle()
            for stream in waiting:
                assert await client.status(stream) == ("14", STOPPING)
            await client.closed()
        assert await port.frontend.stop(asyncio.get_running_loop().time() + 10)

    port(scenario)


def test_leases_of_a_stream_that_breaks_off(tmp_path):
    """A stream ends with an error while responses wait for that of an earlier request: all memory comes back."""
    slow = """
import threading
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            while not request.is_cancelled():
                threading.Event().wait(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.uint8))]) for _ in requests]
"""
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_UINT8", "[ -1 ]"))
    write_model(tmp_path, "slow", slow, identity_config("TYPE_UINT8", "[ -1 ]"))

    async def scenario():
        limit = 2 << 20
        async with (
            engine_on(tmp_path, memory_limit_bytes=limit) as engine,
            grpc_port(engine) as port,
            client_of(port) as client,
        ):
            for number in range(6):  # more than the memory holds, if each lost what it has
                stream = client.open(STREAM_INFER)
                client.send(stream, infer_message(1, "slow"))
                client.send(stream, infer_message(1_000_000, "identity"))
                while engine.find("identity", "", CLIENT).statistics.success_count <= number:
                    await client.settled()
                client.send(stream, b"\0\0", ended=True)
                assert (await client.status(stream))[0] == "13"
                await client.settled()
            assert held(port) == (0, 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


SMALL_METHODS = (
    "ServerLive",
    "ModelReady",
    "ModelConfig",
    "ModelStatistics",
    "RepositoryIndex",
    "LogSettings",
    "TraceSetting",
    "SystemSharedMemoryRegister",
)


def test_a_small_method_refuses_a_large_message_by_its_prefix(port):
    """Reading a million settings would hold up everybody else."""
    too_large = ("8", "a message of 8193 bytes exceeds the largest possible one of 8192 bytes")

    async def scenario(port):
        async with client_of(port) as client:
            for name in SMALL_METHODS:
                call = client.open(f"/inference.GRPCInferenceService/{name}")
                client.send(call, framed(bytes(8193))[:5])  # the rest does not come
                assert await client.status(call) == too_large, name
            assert await client.status(client.call(SERVER_LIVE, framed(bytes(8193)))) == too_large
            bomb = framed(gzip.compress(bytes(20_000)), 1)
            status, _ = await client.status(client.call(SERVER_LIVE, bomb, ("grpc-encoding", "gzip")))
            assert status == "8"

    port(scenario)


def test_what_the_mode_refuses_is_refused_before_the_message(port):
    async def scenario(port):
        async with client_of(port) as client:
            for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
                call = client.open(f"/inference.GRPCInferenceService/{name}")
                client.send(call, framed(bytes(8193))[:5])  # the rest does not come
                status, message = await client.status(call)
                assert status == "14"
                assert "not allowed" in message

    port(scenario)


def test_the_parts_of_a_load_are_counted_before_they_are_read(tmp_path):
    """Protobuf would hold up everybody else while it reads millions of them, wherever they are."""

    def field(number, payload):
        return bytes([number << 3 | 2]) + written_varint(len(payload)) + payload

    junk = b"\x78\x01" * 100_000  # a field that nobody knows
    messages = (junk, field(3, field(1, b"file:a") + junk), field(3, field(1, b"file:a") + field(2, junk)))

    async def scenario():
        async with engine_on(tmp_path, explicit=True) as engine, grpc_port(engine) as port, client_of(port) as client:
            for message in messages:
                call = client.call("/inference.GRPCInferenceService/RepositoryModelLoad", framed(message))
                status, text = await client.status(call)
                assert status == "3"
                assert text.startswith("the request has more than 16384 inputs, outputs, parameters and tensors")

    asyncio.run(asyncio.wait_for(scenario(), 60))
