"""Calls whose message is known take a shortcut, and are answered exactly as all others are."""

import asyncio
import struct

import hpack
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from pybackend.engine.engine import ModelRoute
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.grpc.connection import GrpcConnection
from pybackend.frontend.grpc.head import CallPolicy
from pybackend.settings import GrpcSettings, KeepaliveSettings
from tests.support import http2
from tests.support.engine import engine_on
from tests.support.grpc_calls import INFER, SERVER_LIVE, framed, grpc_port
from tests.support.repositories import tensors, write_model

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(**{"OUT%b": ("TYPE_FP32", [-1])})} ]
version_policy {{ all {{}} }}
"""

ADDING = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                added = NUMBER + len(request.parameters() or "{}") - 2
                if array[0] < 0:
                    answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
                else:
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT%b", array + np.float32(added))]))
            return answers
"""

PATIENT = """
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                while not request.is_cancelled() and request.inputs()[0].as_numpy()[0] == 0:
                    threading.Event().wait(0.001)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT%b", np.ones(1, np.float32))]) for _ in requests]
"""

ECHO = """
    class TritonPythonModel:
        def execute(self, requests):
            found = [each.inputs()[0].as_numpy() for each in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT%b", each)]) for each in found]
"""

SEQUENCES = """
    class TritonPythonModel:
        def execute(self, requests):
            found = [np.array([each.correlation_id(), each.flags()], np.float32) for each in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT%b", each)]) for each in found]
"""

ELEMENTS = 37
"""So the shape has the byte of a percent sign, which stands for more in a form of answers."""


def adding(number):
    return ADDING.replace("NUMBER", str(number))


def message(value=1.0, model="m", elements=ELEMENTS, raw=None, **fields):
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    request.inputs.add(name="IN", datatype="FP32", shape=[elements])
    request.raw_input_contents.append(struct.pack("<f", value) * elements if raw is None else raw)
    return framed(request.SerializeToString())


def whole(client, data, *fields):
    """All frames in one piece."""
    with client.together():
        return client.call(INFER, data, *fields)


def like_grpc(client, data, *fields):
    """With the window updates that grpcio sends, in one piece."""
    with client.together():
        stream = client.open(INFER, *fields)
        client.write(http2.frame(http2.WINDOW_UPDATE, 0, stream, http2.u32(5)))
        client.send(stream, data, ended=True)
        client.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.u32(300)))
    return stream


def parted(client, data, *fields):
    """The message in two frames: no shortcut."""
    stream = client.open(INFER, *fields)
    client.send(stream, data[:1])
    client.send(stream, data[1:], ended=True)
    return stream


async def answer(client, stream):
    await client.until(lambda: stream in client.trailers)
    return client.heads[stream], client.bodies.get(stream), client.trailers[stream], client.resets.get(stream)


def number(found):
    """The first output element of an answer."""
    response = service_pb2.ModelInferResponse.FromString(found[1][5:])
    return response.model_version, response.id, struct.unpack("<f", response.raw_output_contents[0][:4])[0]


class Counted:
    """The requests that took the shortcut.

    Attributes:
        count: all of them.
        whole: those whose frames were not even looked at one by one.
    """

    def __init__(self):
        self.count = self.whole = 0

    def since(self):
        """How many since the last question."""
        count, self.count, self.whole = self.count, 0, 0
        return count


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(loop, tmp_path_factory):
    """The engine, and the directory of its models."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "m", adding(1), CONFIG)
    write_model(repository, "living", adding(1), CONFIG)
    write_model(repository, "patient", PATIENT, CONFIG)
    write_model(repository, "text", ECHO, CONFIG.replace("FP32", "STRING"))
    of_sequences = CONFIG.replace("version_policy { all {} }", "sequence_batching {}")
    write_model(repository, "sequences", SEQUENCES, of_sequences)
    opening = engine_on(repository, explicit=True)
    engine = loop.run(opening.__aenter__())
    yield engine, repository
    loop.run(opening.__aexit__(None, None, None))


@pytest.fixture
def run(loop, engine, monkeypatch):
    """Runs a coroutine with a port, a client and the count of shortcuts."""
    counted, submit, take = Counted(), ModelRoute.submit, GrpcConnection.on_whole_request

    def counting(self, *args):
        pending = submit(self, *args)
        counted.count += pending is not None
        return pending

    def taking(self, *args):
        call = take(self, *args)
        counted.whole += call is not None
        return call

    monkeypatch.setattr(ModelRoute, "submit", counting)
    monkeypatch.setattr(GrpcConnection, "on_whole_request", taking)

    def run(scenario, **options):
        async def serve():
            async with grpc_port(engine[0], **options) as port, await port.connect() as client:
                await client.settled()
                await scenario(port, client, counted)

        loop.run(asyncio.wait_for(serve(), 60))

    return run


async def known(client, data=None, *fields):
    """Send messages until they are known."""
    for _ in range(5):
        await answer(client, whole(client, message() if data is None else data, *fields))


def held(port):
    """Bytes that clients may not send again yet, and calls that have not ended."""
    (connection,) = port.frontend.connections
    return connection.http2.unreturned_bytes, len(connection.http2.streams)


IDS = ["", "a", "é", "%b%%", "i" * 127, "i" * 128, "7", "10"]


def test_all_ways_lead_to_the_same_answers(run):
    async def scenario(port, client, shortcuts):
        await known(client)
        assert shortcuts.since() == 3
        for request_id in IDS:
            data = message(2.5, id=request_id)
            found = [await answer(client, way(client, data)) for way in (whole, like_grpc, parted, whole)]
            assert found.count(found[0]) == len(found)
            assert number(found[0]) == ("1", request_id, 3.5)
            assert shortcuts.since() == (3 if len(request_id) < 128 else 0)
        failures = [await answer(client, way(client, message(-1))) for way in (whole, parted, like_grpc)]
        assert failures.count(failures[0]) == 3
        assert failures[0][2]["grpc-message"] == "negative"
        assert shortcuts.since() == 2
        answers = port.frontend.answer_counts
        assert dict(answers.counts())["INTERNAL"] >= 3
        # Several calls in one write, also with their frames mixed.
        with client.together():
            streams = [client.call(INFER, message(value)) for value in range(9)]
        assert [number(await answer(client, stream))[2] for stream in streams] == [value + 1 for value in range(9)]
        with client.together():
            streams = [client.open(INFER) for _ in range(3)]
            for value in (2, 0, 1):
                client.send(streams[value], message(value), ended=True)
        assert [number(await answer(client, stream))[2] for stream in streams] == [1, 2, 3]
        assert shortcuts.whole == 9
        assert shortcuts.since() == 12
        await client.settled()
        assert held(port) == (0, 0)

    run(scenario)


def test_requests_of_sequences_take_the_shortcut_whichever_they_name(run):
    async def scenario(port, client, shortcuts):
        for sequence in range(1, 300, 40):  # their numbers have one byte or two
            for start, end in ((True, False), (False, False), (False, True)):
                parameters = {
                    "sequence_id": service_pb2.InferParameter(int64_param=sequence),
                    "sequence_start": service_pb2.InferParameter(bool_param=start),
                    "sequence_end": service_pb2.InferParameter(bool_param=end),
                }
                data = message(model="sequences", parameters=parameters, id=str(sequence))
                response = service_pb2.ModelInferResponse.FromString((await answer(client, whole(client, data)))[1][5:])
                assert struct.unpack("<2f", response.raw_output_contents[0]) == (sequence, start + 2 * end)
        assert shortcuts.whole >= 20

    run(scenario)


MALFORMED = {
    "of another size": message(raw=bytes(8)),
    "of the same size, for another shape": message(elements=ELEMENTS - 1, raw=bytes(4 * ELEMENTS)),
    "another input": message().replace(b"IN", b"ON"),
    "another datatype": message().replace(b"FP32", b"INT3"),
    "no such model": message(model="n"),
    "no such version": message(model_version="7"),
    "no version": message(model_version="x"),
    "compressed": framed(message()[5:], 1),
    "no such flag": framed(message()[5:], 9),
    "too short": message()[:-1],
    "two": message() * 2,
    "none": b"",
    "cut prefix": b"\0\0",
    "two ids": framed(b"\x0a\x01m\x1a\x01a\x1a\x01b" + message()[8:]),
    "an id that is no text": framed(b"\x0a\x01m\x1a\x01\xff" + message()[8:]),
    "an id that never ends": framed(b"\x0a\x01m\x1a\x7fa"),
    "a parameter": message(parameters={"a": service_pb2.InferParameter(int64_param=1)}),
    "an option": message(parameters={"priority": service_pb2.InferParameter(int64_param=1)}),
    "another order": framed(message()[8:] + b"\x0a\x01m"),
    "unknown fields": framed(message()[5:] + b"\x78\x01"),
}


def test_without_fast_paths_nothing_is_remembered(run):
    async def scenario(port, client, shortcuts):
        found = [await answer(client, way(client, message(2.5))) for way in (whole, like_grpc, parted) * 3]
        assert found.count(found[0]) == len(found)
        assert number(found[0]) == ("1", "", 3.5)
        assert (shortcuts.since(), port.frontend.memory) == (0, None)

    run(scenario, fast_paths=False)


def test_unusual_messages_get_their_usual_answers(run):
    async def scenario(port, client, shortcuts):
        await known(client)
        for name, data in MALFORMED.items():
            shortcuts.since()
            found = [await answer(client, way(client, data)) for way in (parted, whole, like_grpc, whole)]
            assert found.count(found[0]) == 4, name
            assert number(await answer(client, whole(client, message())))[2] == 2
        await client.settled()
        assert held(port) == (0, 0)

    run(scenario)


def test_a_client_follows_the_model_through_its_life(run, engine):
    async def scenario(port, client, shortcuts):
        models, repository = engine
        await known(client, message(1, "living"))
        # A higher version answers from now on, although the first one still serves.
        write_model(repository, "living", adding(10), CONFIG, version=2)
        await models.control.load("living")
        shortcuts.since()
        found = [number(await answer(client, whole(client, message(1, "living", id="x")))) for _ in range(5)]
        assert found == [("2", "x", 11)] * 5
        assert shortcuts.since() >= 3
        await models.control.unload("living")
        for _ in range(3):
            code, text = await client.status(whole(client, message(1, "living")))
            assert (code, text.startswith("Request for unknown model: 'living' ")) == ("5", True)
        await models.control.load("living")
        shortcuts.since()
        assert [number(await answer(client, whole(client, message(2, "living"))))[2] for _ in range(5)] == [12] * 5
        assert shortcuts.since() >= 3
        (repository / "living" / "2" / "model.py").unlink()
        (repository / "living" / "2").rmdir()
        await models.control.load("living")
        assert number(await answer(client, whole(client, message(1, "living"))))[0] == "1"

    run(scenario)


def test_cancelled_calls_deadlines_and_the_end(run):
    async def scenario(port, client, shortcuts):
        await known(client, message(1, "patient"))
        shortcuts.since()
        with client.together():
            stream = client.call(INFER, message(0, "patient"))
            client.write(http2.frame(http2.RST_STREAM, 0, stream, http2.u32(8)))
        late = whole(client, message(0, "patient"))
        await client.settled()
        assert shortcuts.since() == 2
        assert held(port) == (0, 1)
        client.write(http2.frame(http2.RST_STREAM, 0, late, http2.u32(8)))
        await answer(client, whole(client, message(1, "patient")))
        assert not {stream, late} & set(client.trailers)
        shortcuts.since()
        for way in (parted, whole, whole, whole):
            found = await answer(client, way(client, message(0, "patient"), ("grpc-timeout", "20m")))
            assert (found[2]["grpc-status"], found[2]["grpc-message"]) == ("4", "Deadline Exceeded")
            found = await answer(client, way(client, message(1, "patient"), ("grpc-timeout", "1H")))
            assert number(found)[2] == 1
        assert shortcuts.since() == 6
        await client.settled()
        assert held(port) == (0, 0)
        open_call = whole(client, message(0, "patient"))
        await client.settled()
        port.frontend.stop_listening()
        port.frontend.close_idle()
        code, text = await client.status(whole(client, message()))
        assert (code, text.startswith("GRPC server is shutting down")) == ("14", True)
        assert open_call not in client.trailers
        client.write(http2.frame(http2.RST_STREAM, 0, open_call, http2.u32(8)))
        await client.closed()

    run(scenario)


def test_answers_wait_for_windows(run):
    async def scenario(port, client, shortcuts):
        await known(client)
        expected = await answer(client, whole(client, message()))
        client.write(http2.settings(id_4=0))
        stream, other = whole(client, message()), like_grpc(client, message())
        await client.until(lambda: stream in client.heads and len(client.bodies.get(other, b"")) == 5)
        assert stream not in client.bodies
        for each in (other, stream):
            client.write(http2.frame(http2.WINDOW_UPDATE, 0, each, http2.u32(1000)))
            assert await answer(client, each) == expected
        # Calls use up the window of the connection, and the answers of the last ones wait for it.
        client.write(http2.settings(id_4=1 << 20))
        shortcuts.since()
        streams = [whole(client, message()) for _ in range(70_000 // len(expected[1]))]
        await client.settled()
        await client.until(lambda: streams[-1] in client.heads)
        assert streams[-1] not in client.trailers
        assert shortcuts.since() > len(streams) / 2  # all but those that were cut where the server's read ended
        client.write(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.u32(1 << 20)))
        for stream in streams:
            assert await answer(client, stream) == expected
        # A client that allows no table hears of it with the next head.
        client.forbid_table()
        assert await answer(client, whole(client, message())) == expected
        await client.settled()
        assert held(port) == (0, 0)

    run(scenario)


def test_a_head_is_known_only_while_its_table_is(run):
    def indexed(client, path):
        field = b"\x44" + bytes([len(path)]) + path.encode() if path else b"\xbe"  # the latest entry of the table
        block = b"\x83\x86\x01\x01x" + field + http2.block(("content-type", "application/grpc"), ("te", "trailers"))
        with client.together():
            stream = client.open_by(block)
            client.send(stream, message(), ended=True)
        return stream

    async def scenario(port, client, shortcuts):
        found = [await answer(client, indexed(client, path)) for path in (INFER, "", "", "", "")]
        assert shortcuts.since() >= 3
        assert found.count(found[0]) == 5
        live = [await answer(client, indexed(client, path)) for path in (SERVER_LIVE, "", "", "")]
        assert live.count(live[0]) == 4
        assert live[0][1] == framed(b"\x08\x01")
        assert shortcuts.since() == 0
        again = [await answer(client, indexed(client, path)) for path in (INFER, "", "", "")]
        assert again == found[:4]

    run(scenario)


def test_heads_may_vary_in_what_nobody_reads_and_in_the_deadline(run):
    usual = [(":method", "POST"), (":scheme", "http"), (":path", INFER), (":authority", "x"), ("te", "trailers")]
    usual += [("content-type", "application/grpc"), ("user-agent", "some-client")]

    async def scenario(port, client, shortcuts):
        encoder = hpack.Encoder()

        async def found(data, *fields, in_table, huffman=True):
            block = encoder.encode(usual) + encoder.encode(
                [(*field, not in_table) for field in fields], huffman=huffman
            )
            with client.together():
                stream = client.open_by(block)
                client.send(stream, data, ended=True)
            return await answer(client, stream)

        await known(client)
        for in_table in (True, False):
            for way in (True, False):
                shortcuts.since()
                for count in range(40):
                    own = [("x-request-id", f"{count:032x}"), ("traceparent", f"00-{count:032x}-{count:016x}-01")]
                    own += [("grpc-timeout", f"{1000 + count}S"), ("cookie", f"session={count}")]
                    assert number(await found(message(count), *own, in_table=in_table, huffman=way))[2] == count + 1
                assert shortcuts.whole >= 30
        await known(client, message(1, "patient"))
        for count in range(3):
            own = [("x-request-id", "1"), ("traceparent", "2"), ("grpc-timeout", f"{20 + count}m"), ("cookie", "3")]
            late = await found(message(0, "patient"), *own, in_table=True)
            assert (late[2]["grpc-status"], late[2]["grpc-message"]) == ("4", "Deadline Exceeded")
            own[2] = ("grpc-timeout", f"{count} years")
            wrong = await found(message(1, "patient"), *own, in_table=True)
            assert (wrong[0]["grpc-status"], wrong[0]["grpc-message"].partition(" is no time")[0]) == (
                "13",
                f"grpc-timeout '{count} years'",
            )
        await client.settled()
        assert held(port) == (0, 0)

    run(scenario)


def strings(*elements, count=None, **fields):
    """A message with strings, or bytes that are said to be so many strings."""
    request = service_pb2.ModelInferRequest(model_name="text", **fields)
    request.inputs.add(name="IN", datatype="BYTES", shape=[len(elements) if count is None else count])
    parts = [struct.pack("<I", len(each)) + each for each in elements] if count is None else elements
    request.raw_input_contents.append(b"".join(parts))
    return framed(request.SerializeToString())


def test_strings_take_the_shortcut_whatever_their_lengths(run):
    async def scenario(port, client, shortcuts):
        await known(client)
        for size in (1, 2, 3):
            await answer(client, whole(client, strings(b"a" * size, b"b")))
        shortcuts.since()
        for size in (0, 4, 130, 3000, 7):
            for way, request_id in ((whole, ""), (like_grpc, "x"), (parted, "y")):
                found = await answer(client, way(client, strings(b"a" * size, b"b", id=request_id)))
                response = service_pb2.ModelInferResponse.FromString(found[1][5:])
                assert response.id == request_id
                assert response.raw_output_contents[0] == struct.pack("<I", size) + b"a" * size + b"\1\0\0\0b"
        assert shortcuts.since() == 10
        for wrong in (b"", b"\1\0\0\0", b"\1\0\0\0a" * 3, b"\xff\xff\xff\xffa\1\0\0\0b", b"\1\0\0\0a\1\0\0\0bc"):
            found = [await answer(client, way(client, strings(wrong, count=2))) for way in (parted, whole, like_grpc)]
            assert found.count(found[0]) == 3
            assert found[0][2]["grpc-status"] == "3"
        assert shortcuts.since() == 0

    run(scenario)


def test_requests_that_are_noted_or_changed_take_the_ordinary_way(run):
    async def scenario(port, client, shortcuts):
        await known(client)
        shortcuts.since()
        expected = await answer(client, whole(client, message()))
        port.frontend.request_log.on = True
        assert [await answer(client, whole(client, message())) for _ in range(3)] == [expected] * 3
        port.frontend.request_log.on = False
        assert shortcuts.since() == 1
        port.frontend.policy = CallPolicy(None, ForwardedHeaders("x-.*"))
        async with await port.connect() as other:
            found = [await answer(other, whole(other, message(), ("x-a", "b"))) for _ in range(4)]
            assert found.count(found[0]) == 4
            assert number(found[0])[2] == number(expected)[2] + len('"x-a": "b"')
            assert shortcuts.since() == 0
            assert [await answer(other, whole(other, message())) for _ in range(3)] == [expected] * 3

    run(scenario)


def test_compressed_answers(run):
    settings = GrpcSettings(compression_level="low", keepalive=KeepaliveSettings(max_ping_strikes=0))

    async def scenario(port, client, shortcuts):
        accepts = ("grpc-accept-encoding", "gzip")
        found = [await answer(client, whole(client, message(), accepts)) for _ in range(4)]
        assert {each[0]["grpc-encoding"] for each in found} == {"gzip"}
        assert shortcuts.since() == 0
        await known(client)
        assert shortcuts.since() > 0

    run(scenario, settings=settings)
