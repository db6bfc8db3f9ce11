"""gzip and deflate both ways: Triton's clients, curl, any size, bodies that are broken, and bodies that grow."""

import asyncio
import gzip
import json
import subprocess
import zlib

import numpy as np
import pytest
import tritonclient.http as client
from tritonclient.http import aio

from tests.support.connection import binary_body, chunked, connected, head, post, post_chunked

PATH = "/v2/models/types/infer"
LIVE = head("GET", "/v2/health/live")
MIB = 1 << 20
DEFLATED = {"gzip": lambda data: gzip.compress(data, 1), "deflate": zlib.compress}
INFLATED = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}
LARGEST = 64 * MIB


def document(values):
    tensor = {"name": "FP32", "datatype": "FP32", "shape": [len(values)], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


def binary(count, *, outputs_binary=True):
    blob = np.random.default_rng(count).integers(0, 100, count).astype(np.float32).tobytes()
    described = {"name": "FP32", "datatype": "FP32", "shape": [count], "parameters": {"binary_data_size": len(blob)}}
    body, headers = binary_body({"inputs": [described], "parameters": {"binary_data_output": outputs_binary}}, blob)
    return body, headers, blob


def compressed(body, coding, headers=(), *, sends_chunks=False):
    fields = {**dict(headers), "Content-Encoding": coding}
    data = DEFLATED[coding](body)
    if sends_chunks:
        return post_chunked(PATH, [data[at : at + 5000] for at in range(0, len(data), 5000)], fields)
    return post(PATH, data, fields)


@pytest.mark.spec("srv-H15")
@pytest.mark.parametrize("sends_chunks", [False, True], ids=["whole", "chunks"])
@pytest.mark.parametrize("answer", ["gzip", "deflate", None])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_every_size_and_form(connect, coding, answer, sends_chunks):
    """Small bodies, those that go to shared memory, and JSON that is read in slices; with another request behind each."""
    connection = connect()
    accept = {"Accept-Encoding": answer} if answer else {}
    for count in (2, 5_000, 200_000):
        body, headers, blob = binary(count)
        connection.send(compressed(body, coding, {**headers, **accept}, sends_chunks=sends_chunks) + LIVE)
        reply = connection.reply()
        assert (reply.status, reply.headers.get("content-encoding")) == (200, answer)
        plain = INFLATED[answer](reply.body)
        length = int(reply.headers["inference-header-content-length"])
        assert json.loads(plain[:length])["outputs"][0]["parameters"] == {"binary_data_size": len(blob)}
        assert plain[length:] == blob
        assert connection.reply().status == 200
    for count in (3, 40_000):
        values = [each / 4 for each in range(count)]
        connection.send(compressed(document(values), coding, accept, sends_chunks=sends_chunks))
        reply = connection.reply()
        assert (reply.status, reply.headers.get("content-encoding")) == (200, answer)
        assert json.loads(INFLATED[answer](reply.body))["outputs"][0]["data"] == values


@pytest.mark.spec("srv-H15")
def test_json_outputs_with_binary_ones_and_raw_bodies(server):
    body, headers, blob = binary(100_000, outputs_binary=False)
    fields = {**headers, "Content-Encoding": "gzip", "Accept-Encoding": "deflate"}
    reply = server.infer("types", gzip.compress(body), fields)
    assert json.loads(zlib.decompress(reply.body))["outputs"][0]["data"] == np.frombuffer(blob, np.float32).tolist()
    raw = np.arange(6, dtype=np.int32).tobytes()
    fields = {"Inference-Header-Content-Length": "0", "Content-Encoding": "deflate", "Accept-Encoding": "gzip"}
    reply = server.infer("raw", zlib.compress(raw), fields)
    assert gzip.decompress(reply.body).endswith(raw)
    assert "content-encoding" not in reply.headers or reply.headers["content-encoding"] == "gzip"


@pytest.mark.spec("srv-H15")
@pytest.mark.parametrize("answer", ["gzip", "deflate", None])
@pytest.mark.parametrize("request_coding", ["gzip", "deflate", None])
def test_clients_of_triton(server, request_coding, answer):
    options = {"request_compression_algorithm": request_coding, "response_compression_algorithm": answer}
    arrays = [np.arange(count, dtype=np.float32) for count in (4, 200_000)]

    def given(module, array):
        tensor = module.InferInput("FP32", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        return [tensor]

    with client.InferenceServerClient(server.url) as ours:
        for array in arrays:
            result = ours.infer("types", given(client, array), **options)
            np.testing.assert_array_equal(result.as_numpy("FP32"), array)

    async def scenario():
        async with aio.InferenceServerClient(server.url) as ours:
            for array in arrays:
                result = await ours.infer("types", given(aio, array), **options)
                np.testing.assert_array_equal(result.as_numpy("FP32"), array)

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.spec("srv-H15")
def test_curl(server):
    url = f"http://{server.url}{PATH}"
    for values in ([1.5], [0.25] * 50_000):
        arguments = ["curl", "-sS", "--compressed", "-D", "-", "-d", "@-", url]
        done = subprocess.run(arguments, input=document(values), capture_output=True, check=True, timeout=60)
        fields, _, body = done.stdout.partition(b"\r\n\r\n")
        assert b"content-encoding: " in fields
        assert json.loads(body)["outputs"][0]["data"] == values


@pytest.mark.spec("srv-H15")
def test_repeated_heads_with_and_without_compression(connect):
    """The server remembers heads, and what they accept."""
    connection = connect()
    body = document([1, 2])
    for _ in range(3):
        for fields in ({}, {"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity;q=1, gzip;q=0.5"}):
            for _ in range(3):
                connection.send(post(PATH, body, fields))
                reply = connection.reply()
                assert reply.headers.get("content-encoding") == (
                    "gzip" if fields.get("Accept-Encoding") == "gzip" else None
                )
                plain = gzip.decompress(reply.body) if "content-encoding" in reply.headers else reply.body
                assert json.loads(plain)["outputs"][0]["data"] == [1, 2]


@pytest.mark.spec("srv-H15")
def test_what_is_not_compressed(server):
    """Errors, other routes, and answers to clients of HTTP/1.0."""
    accept = {"Accept-Encoding": "gzip"}
    for reply in (server.infer("types", b"{", accept), server.request("GET", "/v2", headers=accept)):
        assert "content-encoding" not in reply.headers
    with connected(server.port) as connection:
        body = document([1.0] * 50_000)
        request = post(PATH, body, accept).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        connection.send(request)
        reply = connection.reply()
        assert "content-encoding" not in reply.headers
        assert len(reply.json["outputs"][0]["data"]) == 50_000


@pytest.mark.spec("srv-H15")
@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x" * 500])
def test_unknown_compressions(server, coding):
    reply = server.infer("types", document([1]), {"Content-Encoding": coding})
    assert (reply.status, reply.headers["accept-encoding"]) == (501, "gzip, deflate")
    assert reply.error.startswith("Unsupported compression type")
    assert server.infer("types", document([1]), {"Content-Encoding": "Identity"}).status == 200


@pytest.mark.spec("srv-H15")
def test_generate_takes_no_compression(server):
    reply = server.request("POST", "/v2/models/types/generate", b"{}", {"Content-Encoding": "gzip"})
    assert (reply.status, reply.error) == (400, "Unsupported content-encoding, only 'identity' is supported.")


GOOD = gzip.compress(document([1.0] * 50_000))
BROKEN = {
    "not compressed": (document([1]), "it is not compressed as gzip: "),
    "empty": (b"", "the data ends in the middle of its gzip stream"),
    "cut": (GOOD[:-9], "the data ends in the middle of its gzip stream"),
    "cut in its check sum": (GOOD[:-1], "the data ends in the middle of its gzip stream"),
    "a wrong check sum": (GOOD[:-8] + b"\0\0\0\0" + GOOD[-4:], "it is not compressed as gzip: "),
    "more behind": (GOOD + b"more", "4 bytes follow the end of the gzip stream"),
    "much more behind": (GOOD + bytes(300_000), " bytes follow the end of the gzip stream"),
}


@pytest.mark.spec("srv-H15", "srv-H10")
@pytest.mark.parametrize("sends_chunks", [False, True], ids=["whole", "chunks"])
@pytest.mark.parametrize(("body", "text"), BROKEN.values(), ids=BROKEN)
def test_broken_streams(connect, body, text, sends_chunks):
    """The connection goes on."""
    connection = connect()
    fields = {"Content-Encoding": "gzip"}
    pieces = [body[at : at + 70_000] for at in range(0, len(body), 70_000)]
    connection.send((post_chunked(PATH, pieces, fields) if sends_chunks else post(PATH, body, fields)) + LIVE)
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error.startswith("the body cannot be decompressed: ")
    assert text in reply.error
    assert connection.reply().status == 200


@pytest.mark.spec("srv-H15")
def test_length_of_the_json_part_is_that_before_compression(server):
    body, headers, _ = binary(10)
    for length, text in (
        (len(body) + 1, "inference header size should be in range"),
        ("x", "Unable to parse Inference-"),
    ):
        fields = {"Inference-Header-Content-Length": str(length), "Content-Encoding": "gzip"}
        assert text in server.infer("types", gzip.compress(body), fields).error
    assert server.infer("types", gzip.compress(body + b"1"), {**headers, "Content-Encoding": "gzip"}).status == 400
    assert server.infer("types", gzip.compress(body[:-1]), {**headers, "Content-Encoding": "gzip"}).status == 400


def bomb(nbytes):
    """So many zeros take a thousandth of their size."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    zeros = bytes(MIB)
    return b"".join(compressor.compress(zeros) for _ in range(nbytes // MIB)) + compressor.flush()


@pytest.mark.spec("srv-H15", "srv-H39")
@pytest.mark.parametrize("fields", [{}, {"Inference-Header-Content-Length": "0"}], ids=["JSON", "raw"])
def test_bombs(server, fields):
    """Refused as soon as they exceed the limit; clients beside them are answered meanwhile."""
    data = bomb(LARGEST + 16 * MIB)
    with connected(server.port) as connection:
        connection.send(post(PATH, data, {"Content-Encoding": "gzip", **fields}))
        assert server.get("/v2/health/live").status == 200
        reply = connection.reply()
        text = f"Decompressed data size exceeds the maximum allowed value of {LARGEST} bytes. Use --http-max-input-size"
        assert reply.status == 400
        assert reply.error.startswith(text)


@pytest.mark.spec("srv-H15")
def test_a_sender_that_takes_its_time(connect):
    """Byte by byte, and chunk by chunk, with others between."""
    body, headers, blob = binary(3)
    data = gzip.compress(body)
    one, other = connect(), connect()
    one.send(head("POST", PATH, {**headers, "Content-Encoding": "gzip", "Content-Length": len(data)}))
    for at in range(len(data)):
        one.send(data[at : at + 1])
        other.send(LIVE)
        assert other.reply().status == 200
    assert one.reply().body.endswith(blob)
    one.send(head("POST", PATH, {**headers, "Content-Encoding": "gzip", "Transfer-Encoding": "chunked"}))
    for at in range(len(data)):
        one.send(chunked([data[at : at + 1]])[:-5])
    one.send(b"0\r\n\r\n")
    assert one.reply().body.endswith(blob)
