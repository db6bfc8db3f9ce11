"""Compressed requests and responses of gRPC, as Triton's clients and bare frames see them."""

import asyncio
import queue
import struct
import zlib

import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2

from tests.e2e.grpc.conftest import given
from tests.support.grpc_calls import INFER, STREAM_INFER, RawClient, framed
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served

FRAME_BYTES = 512 * 1024
EVEN = np.zeros(300_000, np.float32)
RANDOM = np.random.default_rng(0).random(100_000, np.float32)


@served(flags=("--grpc-infer-response-compression-level=low",))
def compressing(repository):
    write_model(repository, "identity", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    write_model(repository, "octets", IDENTITY, identity_config("TYPE_UINT8", "[ -1 ]"))


def request(array, model="identity", datatype="FP32"):
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="IN", datatype=datatype, shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    return message.SerializeToString()


def messages(body):
    """Flag and content of each message."""
    found = []
    while body:
        flag, size = struct.unpack_from(">BI", body)
        found.append((flag, body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def send(raw, stream, data):
    """All of it, in frames that the server accepts."""
    for at in range(0, len(data), FRAME_BYTES):
        raw.send(stream, data[at : at + FRAME_BYTES], ended=at + FRAME_BYTES >= len(data))


def raw_call(server, path, data, *fields):
    """Head, messages and status of a call."""

    async def scenario():
        host, port = server.grpc_url.split(":")
        async with await RawClient.connect((host, int(port)), id_4=2**31 - 1) as raw:
            raw.write(b"\0\0\4\x08\0\0\0\0\0" + (2**30).to_bytes(4, "big"))
            stream = raw.open(path, *fields)
            send(raw, stream, data)
            status = await raw.status(stream)
            return raw.heads[stream], messages(raw.bodies.get(stream, b"")), status

    return asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.spec("srv-G12")
@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("identity, deflate, gzip", "gzip"),
        ("identity,deflate", "deflate"),
        ("identity", None),
        ("snappy", None),
        (None, None),
    ],
)
def test_the_client_says_which(compressing, accepted, encoding):
    fields = [] if accepted is None else [("grpc-accept-encoding", accepted)]
    for array in (EVEN[:5000], EVEN):
        head, ((flag, content),), status = raw_call(compressing, INFER, framed(request(array)), *fields)
        assert (status[0], head.get("grpc-encoding"), flag) == ("0", encoding, 1 if encoding else 0)
        if encoding:
            assert len(content) < 10_000
            content = zlib.decompress(content, 47)
        assert service_pb2.ModelInferResponse.FromString(content).raw_output_contents[0] == array.tobytes()


@pytest.mark.spec("srv-G12")
def test_what_would_not_become_smaller_is_sent_as_it_is(compressing):
    noise = np.frombuffer(np.random.default_rng(0).bytes(300_000), np.uint8)
    for array in (noise, noise[:64]):
        data = framed(request(array, "octets", "UINT8"))
        head, ((flag, content),), status = raw_call(compressing, INFER, data, ("grpc-accept-encoding", "gzip"))
        assert (status[0], head["grpc-encoding"], flag) == ("0", "gzip", 0)
        assert content.endswith(array.tobytes())


@pytest.mark.spec("srv-G12")
def test_a_stream_keeps_its_order(compressing):
    """Large and small responses, and errors between them."""
    arrays = [EVEN, EVEN[:3], RANDOM, EVEN[:40_000], EVEN[:1]]
    data = b"".join(framed(request(array)) + framed(request(array, "nobody")) for array in arrays)
    _, found, status = raw_call(compressing, STREAM_INFER, data, ("grpc-accept-encoding", "gzip"))
    assert status[0] == "0"
    assert len(found) == 10
    for number, (flag, content) in enumerate(found):
        message = service_pb2.ModelStreamInferResponse.FromString(zlib.decompress(content, 31) if flag else content)
        if number % 2:
            assert "nobody" in message.error_message
        else:
            assert message.infer_response.raw_output_contents[0] == arrays[number // 2].tobytes()


@pytest.mark.spec("srv-G12")
@pytest.mark.parametrize("compression", ["gzip", "deflate", None])
def test_clients_of_triton(compressing, compression):
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with client.InferenceServerClient(compressing.grpc_url, channel_args=options) as ours:
        for array in (EVEN[:4], EVEN, RANDOM):
            result = ours.infer("identity", given(array), compression_algorithm=compression)
            np.testing.assert_array_equal(result.as_numpy("OUT"), array)
        answers = queue.Queue()
        ours.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=compression)
        for array in (EVEN, EVEN[:7], RANDOM):
            ours.async_stream_infer("identity", given(array))
        for array in (EVEN, EVEN[:7], RANDOM):
            result, error = answers.get(timeout=60)
            assert error is None
            np.testing.assert_array_equal(result.as_numpy("OUT"), array)
        ours.stop_stream()


@pytest.mark.spec("srv-G12")
def test_a_bomb(compressing):
    """Refused as it passes the limit, while others are answered."""
    packed = zlib.compressobj(1, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    bomb = b"".join(packed.compress(zeros) for _ in range(80)) + packed.flush()
    _, found, (status, message) = raw_call(compressing, INFER, framed(bomb, 1), ("grpc-encoding", "gzip"))
    assert (found, status) == ([], "3")
    assert message.startswith("Decompressed data size exceeds the maximum allowed value of 67108864 bytes")


@pytest.mark.spec("srv-G12")
def test_a_client_that_leaves_while_its_response_is_compressed(compressing):
    """Its memory goes back: any number of them leaves room for the next."""
    array = np.random.default_rng(0).random(900_000, np.float32)

    async def scenario():
        host, port = compressing.grpc_url.split(":")
        for _ in range(5):
            async with await RawClient.connect((host, int(port)), id_4=2**31 - 1) as raw:
                raw.write(b"\0\0\4\x08\0\0\0\0\0" + (2**30).to_bytes(4, "big"))
                stream = raw.open(STREAM_INFER, ("grpc-accept-encoding", "gzip"))
                send(raw, stream, framed(request(array)))
                await raw.settled()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    with client.InferenceServerClient(compressing.grpc_url) as ours:
        np.testing.assert_array_equal(ours.infer("identity", given(EVEN)).as_numpy("OUT"), EVEN)
