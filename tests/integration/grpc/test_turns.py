"""However many requests a client sends, a turn of the event loop does a little for it: counted by what a turn answers."""

import asyncio

import pytest
import uvloop
from tritonclient.grpc import service_pb2

from pybackend.engine.admission import CLIENT
from pybackend.frontend import slices
from tests.support import http2
from tests.support.engine import engine_on
from tests.support.grpc_calls import INFER, SERVER_LIVE, STREAM_INFER, framed, grpc_port
from tests.support.repositories import identity_config, write_model

UNKNOWN = framed(service_pb2.ModelInferRequest(model_name="nobody", id="a").SerializeToString())
COUNT = 600
MOST_FRAMES = 32 + 16  # of one call of the protocol's, and the whole requests behind the last of them


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a test's coroutine with a port whose connections have the shortest turns."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)

    def run(scenario):
        async def serve():
            async with engine_on(tmp_path) as engine, grpc_port(engine) as port:
                await scenario(port)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(serve(), 60))

    return run


async def most_of_a_turn(count, last):
    """Waits until a count reaches its last value; returns its greatest step from one turn to the next."""
    seen = count()
    most = 0
    while seen < last:
        await asyncio.sleep(0)
        now = count()
        most, seen = max(most, now - seen), now
    return most


async def refused_per_turn(port, last):
    return await most_of_a_turn(lambda: sum(port.frontend.engine.refusals.counts.values()), last)


def test_messages_of_a_stream(run):
    async def scenario(port):
        async with await port.connect() as client:
            stream = client.open(STREAM_INFER)
            client.send(stream, (framed(b"") + UNKNOWN) * (COUNT // 2), ended=True)
            assert await refused_per_turn(port, COUNT) == 1
            assert await client.status(stream) == ("0", "")
            answers = client.bodies[stream]
            assert answers.count(b"nobody") == COUNT // 2

    run(scenario)


def test_messages_of_many_streams(run):
    async def scenario(port):
        async with await port.connect() as client:
            with client.together():
                streams = [client.open(STREAM_INFER) for _ in range(20)]
                for stream in streams:
                    client.send(stream, UNKNOWN * (COUNT // 20), ended=True)
            assert await refused_per_turn(port, COUNT) <= 20 + 1  # the first of each, and then one of all
            assert {await client.status(stream) for stream in streams} == {("0", "")}

    run(scenario)


@pytest.mark.parametrize(
    ("path", "data"),
    [("/nothing", b""), (INFER, UNKNOWN), (INFER, framed(b"") + b"rest")],
    ids=["unknown methods", "unknown models", "garbage"],
)
def test_calls_of_one_read(run, path, data):
    async def scenario(port):
        async with await port.connect() as client, await port.connect() as other:
            await other.settled()
            with client.together():
                streams = [client.call(path, data) for _ in range(COUNT)]
            live = other.call(SERVER_LIVE, framed(b""))
            assert await refused_per_turn(port, COUNT) <= MOST_FRAMES
            assert await other.status(live) == ("0", "")
            for stream in streams:
                await client.status(stream)
            assert len(client.trailers) == COUNT
            assert port.frontend.client_memory.used_bytes == 0
            live = client.call(SERVER_LIVE, framed(b""))  # the connection is read again
            assert await client.status(live) == ("0", "")

    run(scenario)


def test_calls_that_a_method_answers(run):
    """They begin in turns of their own, because nobody knows how long an answer takes."""

    async def scenario(port):
        async with await port.connect() as client:
            with client.together():
                streams = [client.call(SERVER_LIVE, framed(b"")) for _ in range(100)]
            assert await most_of_a_turn(lambda: port.frontend.answer_counts.ok, len(streams)) == 1
            assert {await client.status(stream) for stream in streams} == {("0", "")}

    run(scenario)


def test_a_client_that_leaves_while_its_requests_wait(run):
    async def scenario(port):
        async with await port.connect() as client:
            stream = client.open(STREAM_INFER)
            client.send(stream, UNKNOWN * COUNT)
            with client.together():
                for _ in range(COUNT):
                    client.call("/nothing", b"")
            await refused_per_turn(port, 3)
        while port.frontend.connections:
            port.frontend.ended.clear()
            await port.frontend.ended.wait()
        assert port.frontend.client_memory.used_bytes == 0
        async with await port.connect() as client:
            assert await client.status(client.call(SERVER_LIVE, framed(b""))) == ("0", "")

    run(scenario)


def test_a_broken_frame_behind_many_calls(run):
    """The rules hold for what has waited, too."""

    async def scenario(port):
        async with await port.connect() as client:
            with client.together():
                streams = [client.call("/nothing", b"") for _ in range(COUNT)]
                client.write(http2.frame(http2.SETTINGS, 0, 1))
            await client.closed()
            assert len(client.trailers) == len(streams)
            assert b"SETTINGS on stream 1" in client.goaways[0]

    run(scenario)


HELD = """
import time


class TritonPythonModel:
    def execute(self, requests):
        while not requests[0].is_cancelled():
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_a_client_that_leaves_with_many_waiting_requests(run, tmp_path):
    """Each stream cancels a few of its requests per turn."""
    write_model(tmp_path, "held", HELD, identity_config("TYPE_UINT8"))
    request = service_pb2.ModelInferRequest(model_name="held")
    request.inputs.add(name="IN", datatype="UINT8", shape=[1])
    request.raw_input_contents.append(b"x")
    message = framed(request.SerializeToString())

    async def scenario(port):
        model = port.frontend.engine.find("held", "", CLIENT)
        async with await port.connect() as client:
            for _ in range(2):
                client.send(client.open(STREAM_INFER), message * COUNT)
            await most_of_a_turn(lambda: model.pending_count, 2 * COUNT - 1)  # one runs
        assert await most_of_a_turn(lambda: -model.pending_count, 0) < COUNT // 4

    run(scenario)
