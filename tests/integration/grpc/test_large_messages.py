"""Large messages in frames of any size, several at a time; and streams that wait while others go on."""

import asyncio
import gzip
import itertools

import numpy as np
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from pybackend.frontend.flow import SLOW_AFTER_SECONDS
from pybackend.frontend.grpc.call import open_calls, open_messages
from pybackend_wire.bytes_tensor import encode_elements
from tests.integration.models.conftest import running_engine
from tests.support import http2
from tests.support.engine import engine_on
from tests.support.grpc_calls import INFER, SERVER_LIVE, STREAM_INFER, framed, grpc_port
from tests.support.repositories import IDENTITY, identity_config, write_model

WINDOW = 4  # SETTINGS_INITIAL_WINDOW_SIZE
FRAME = 5  # SETTINGS_MAX_FRAME_SIZE
OPEN_WINDOWS = {f"id_{WINDOW}": 2**30, f"id_{FRAME}": 2**20}
ELEMENTS = 400_000


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """Runs a test's coroutine with a client of a port; the model ``numbers`` sends back its input."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "numbers", IDENTITY, identity_config("TYPE_FP32"))
    write_model(repository, "texts", IDENTITY, identity_config("TYPE_STRING"))
    write_model(repository, "bytes", IDENTITY, identity_config("TYPE_INT8"))

    def run(scenario, **settings):
        async def serve():
            async with grpc_port(engine) as opened:
                async with await opened.connect(**settings) as client:
                    client.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.u32(2**30)))
                    await client.settled()
                    await scenario(opened, client)
                while opened.frontend.connections:
                    opened.frontend.ended.clear()
                    await opened.frontend.ended.wait()
                assert opened.frontend.client_memory.used_bytes == 0
                return engine.repository.catalogue.find("numbers").arena.total_bytes

        return run_on_loop(asyncio.wait_for(serve(), 55))

    with running_engine(repository, loop_factory=uvloop.new_event_loop) as (engine, run_on_loop):
        yield run


def request(values, **fields):
    made = service_pb2.ModelInferRequest(model_name="numbers", **fields)
    made.inputs.add(name="IN", datatype="FP32", shape=[len(values)])
    made.raw_input_contents.append(values.tobytes())
    return framed(made.SerializeToString())


def numbers(seed):
    return np.arange(seed, seed + ELEMENTS, dtype=np.float32)


def answers(body, of):
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append(of.FromString(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def cut(data, sizes):
    """The data in frames of these sizes, over and over."""
    at = 0
    for size in itertools.cycle(sizes):
        yield data[at : at + size], at + size >= len(data)
        at += size
        if at >= len(data):
            return


def send(client, stream, data):
    """The rest of a call, in large frames."""
    for frame, ended in cut(data, [1_000_000]):
        client.send(stream, frame, ended=ended)


def call(client, data):
    stream = client.open(INFER)
    send(client, stream, data)
    return stream


@pytest.mark.parametrize(
    "sizes",
    [[1_000_000], [16_384], [70_000, 3, 200_000], [65_536, 1]],
    ids=["large frames", "usual frames", "any frames", "a byte between"],
)
def test_calls_whose_frames_alternate(port, sizes):
    async def scenario(_port, client):
        streams = [client.open(INFER) for _ in range(3)]
        parts = [cut(request(numbers(stream), id=str(stream)), sizes) for stream in streams]
        for frames in itertools.zip_longest(*parts):
            for stream, frame in zip(streams, frames, strict=True):
                if frame is not None:
                    client.send(stream, frame[0], ended=frame[1])
        for stream in streams:
            assert (await client.status(stream))[0] == "0"
            (answer,) = answers(client.bodies[stream], service_pb2.ModelInferResponse)
            assert answer.id == str(stream)
            assert answer.raw_output_contents == [numbers(stream).tobytes()]

    assert port(scenario, **OPEN_WINDOWS) > 0, "large inputs go through shared memory"


def test_a_stream_of_large_and_small_messages(port):
    few = np.arange(3, dtype=np.float32)
    sent = [few, numbers(1), numbers(2), few, few, numbers(3)]

    async def scenario(_port, client):
        stream = client.open(STREAM_INFER)
        for data, ended in cut(b"".join(map(request, sent)), [1_000_000, 100_000]):
            client.send(stream, data, ended=ended)
        assert (await client.status(stream))[0] == "0"
        found = answers(client.bodies[stream], service_pb2.ModelStreamInferResponse)
        assert [each.infer_response.raw_output_contents[0] for each in found] == [each.tobytes() for each in sent]

    port(scenario, **OPEN_WINDOWS)


def test_an_error_in_a_large_message_is_one_answer_of_the_stream(port):
    wrong = request(numbers(1), id="wrong", outputs=[{"name": "MISSING"}])

    async def scenario(_port, client):
        stream = client.open(STREAM_INFER)
        for data, ended in cut(wrong + request(numbers(2), id="right"), [300_000]):
            client.send(stream, data, ended=ended)
        assert (await client.status(stream))[0] == "0"
        first, second = answers(client.bodies[stream], service_pb2.ModelStreamInferResponse)
        assert first.error_message.startswith("unexpected inference output 'MISSING' for model 'numbers'")
        assert first.infer_response.id == "wrong"
        assert second.infer_response.id == "right"

    port(scenario, **OPEN_WINDOWS)


def test_an_error_in_a_large_call_needs_no_more_of_it(port):
    async def scenario(_port, client):
        stream = client.open(INFER)
        client.send(stream, request(numbers(1), outputs=[{"name": "MISSING"}])[:300_000])
        status, message = await client.status(stream)
        assert status == "3"
        assert message.startswith("unexpected inference output 'MISSING'")
        client.send(stream, bytes(100_000))  # on its way before the client knew
        assert (await client.status(call(client, request(numbers(2)))))[0] == "0"

    port(scenario, **OPEN_WINDOWS)


def test_a_call_that_ends_in_the_middle_of_its_message(port):
    async def scenario(_port, client):
        whole = request(numbers(1))
        for begin, left in (
            (whole[:1_000_000], f"{len(whole) - 1_000_000} bytes of it are missing"),
            (whole[:4], "4 bytes of it have arrived"),
        ):
            status, message = await client.status(call(client, begin))
            assert status == "13"
            assert message == f"the call ended in the middle of a message: {left}"

    port(scenario, **OPEN_WINDOWS)


@pytest.mark.parametrize("leave", ["reset", "disconnect"])
def test_a_client_that_leaves_in_the_middle_of_a_tensor(port, leave):
    async def scenario(opened, client):
        stream = client.open(INFER)
        whole = request(numbers(1))
        client.send(stream, whole[:1_000_000])
        await client.settled()
        (connection,) = opened.frontend.connections
        assert connection.peer.arriving_count == 1
        if leave == "disconnect":
            client.write(http2.frame(http2.DATA, 0, stream, whole[1_000_000:])[:200_000])
            return
        client.write(http2.frame(http2.RST_STREAM, 0, stream, http2.u32(8)))
        await client.settled()
        assert connection.peer.arriving_count == 0
        assert connection.http2.unreturned_bytes == 0
        assert (await client.status(call(client, whole)))[0] == "0"

    port(scenario, **OPEN_WINDOWS)


def test_streams_that_wait_hold_up_no_other_one(port):
    """Five streams fill their windows while nobody reads their answers: more than the window of the connection."""
    small = framed(service_pb2.ModelInferRequest(model_name="missing").SerializeToString())

    async def scenario(opened, client):
        for _ in range(5):
            stream = client.open(STREAM_INFER)
            filling = small * (4_000_000 // len(small))
            for data, _ in cut(filling, [1_000_000]):
                client.send(stream, data)
        live = client.call(SERVER_LIVE, framed(b""))
        client.write(http2.frame(http2.WINDOW_UPDATE, 0, live, http2.u32(1000)))
        assert (await client.status(live))[0] == "0"
        assert opened.frontend.client_memory.used_bytes > 16_000_000
        assert not client.returned.keys() - {0}

    port(scenario, **{f"id_{WINDOW}": 0})


TEXTS = [b"x" * (number % 50) for number in range(200_000)]
ENCODED = encode_elements(TEXTS)
OCTETS = np.arange(1_000_000, dtype=np.int64).astype(np.int8)


def listed(model, datatype, field, values):
    made = service_pb2.ModelInferRequest(model_name=model, id="large")
    getattr(made.inputs.add(name="IN", datatype=datatype, shape=[len(values)]).contents, field).extend(values)
    return made.SerializeToString()


def raw_texts():
    made = service_pb2.ModelInferRequest(model_name="texts", id="large")
    made.inputs.add(name="IN", datatype="BYTES", shape=[len(TEXTS)])
    made.raw_input_contents.append(ENCODED)
    return made.SerializeToString()


LONG_WORK = {
    "raw texts": (raw_texts, ENCODED),
    "texts": (lambda: listed("texts", "BYTES", "bytes_contents", TEXTS), ENCODED),
    "octets": (lambda: listed("bytes", "INT8", "int_contents", OCTETS.tolist()), OCTETS.tobytes()),
    "floats": (lambda: listed("numbers", "FP32", "fp32_contents", [0.5] * 1_500_000), b"\0\0\0\x3f" * 1_500_000),
}
long_work = pytest.mark.parametrize(("make", "wanted"), LONG_WORK.values(), ids=LONG_WORK)


async def reading(port):
    """Returns while a large message is being read in slices."""
    while not any(each.is_busy for connection in port.frontend.connections for each in open_messages(connection.http2)):  # noqa: ASYNC110
        await asyncio.sleep(0)  # the server shares this loop


@long_work
@pytest.mark.parametrize("flag", [0, 1], ids=["plain", "compressed"])
def test_others_are_served_while_a_large_message_is_read(port, make, wanted, flag):
    data = make()
    sent = framed(gzip.compress(data, 1) if flag else data, flag)

    async def scenario(opened, client):
        stream = client.open(STREAM_INFER, ("grpc-encoding", "gzip"))
        send(client, stream, sent + request(np.zeros(1, np.float32), id="next"))
        await reading(opened)
        async with await opened.connect() as other:
            live = other.open(SERVER_LIVE)
            other.send(live, framed(b""), ended=True)
            assert (await other.status(live))[0] == "0"
            assert not client.bodies.get(stream), "the large message was read in one go"
        assert (await client.status(stream))[0] == "0"
        first, second = answers(client.bodies[stream], service_pb2.ModelStreamInferResponse)
        assert (first.infer_response.id, second.infer_response.id) == ("large", "next")
        assert first.infer_response.raw_output_contents == [wanted]

    port(scenario, **OPEN_WINDOWS)


@long_work
@pytest.mark.parametrize("method", [INFER, STREAM_INFER])
def test_a_call_that_is_cancelled_while_its_message_is_read(port, make, wanted, method):
    async def scenario(opened, client):
        stream = client.open(method)
        send(client, stream, framed(make()))
        await reading(opened)
        client.write(http2.frame(http2.RST_STREAM, 0, stream, http2.u32(8)))
        await client.settled()
        (connection,) = opened.frontend.connections
        assert not open_calls(connection.http2)
        assert (connection.peer.flow.held_bytes, connection.peer.arriving_count) == (0, 0)
        stream = call(client, request(np.zeros(1, np.float32)))
        assert (await client.status(stream))[0] == "0"

    port(scenario, **OPEN_WINDOWS)


def test_a_connection_that_is_lost_while_a_message_is_read(port):
    async def scenario(opened, client):
        send(client, client.open(INFER), framed(raw_texts()))
        await reading(opened)
        await client.__aexit__()

    port(scenario, **OPEN_WINDOWS)


def test_a_deadline_that_passes_while_a_message_is_read(port):
    async def scenario(opened, client):
        stream = client.open(INFER, ("grpc-timeout", "300m"))
        send(client, stream, framed(listed("texts", "BYTES", "bytes_contents", [b""] * 2_000_000)))
        assert (await client.status(stream))[0] == "4"

    port(scenario, **OPEN_WINDOWS)


def test_mistakes_at_the_end_of_large_texts(port):
    async def scenario(opened, client):
        stream = client.open(INFER)
        made = service_pb2.ModelInferRequest.FromString(raw_texts())
        made.raw_input_contents[0] = ENCODED[:-1]
        send(client, stream, framed(made.SerializeToString()))
        status, message = await client.status(stream)
        assert status == "3"
        assert "incomplete string data for inference input 'IN' for model 'texts'" in message

    port(scenario, **OPEN_WINDOWS)


def test_slow_senders_make_room(tmp_path):
    """A client that has sent much and goes on slowly keeps the memory only as long as nobody needs it."""
    write_model(tmp_path, "numbers", IDENTITY, identity_config("TYPE_FP32"))
    data = request(numbers(1))

    async def most_of(client):
        stream = client.open(INFER)
        for frame, _ in cut(data[: len(data) * 3 // 4], [100_000]):
            client.send(stream, frame)
        await client.settled()
        return stream

    async def scenario():
        async with (
            engine_on(tmp_path, memory_limit_bytes=2 * 1024 * 1024) as engine,
            grpc_port(engine) as port,
            await port.connect(**OPEN_WINDOWS) as slow,
            await port.connect(**OPEN_WINDOWS) as quick,
        ):
            quick.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.u32(2**30)))
            await most_of(slow)
            refused = call(quick, data)
            status, message = await quick.status(refused)
            assert status == "14", "nobody is slow yet"
            assert message.startswith("no input memory left for model 'numbers'")
            for _ in range(SLOW_AFTER_SECONDS * 4):  # the rate is a moving average
                port.advance(1)
            assert (await quick.status(call(quick, data)))[0] == "0"
            await slow.closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 55))
