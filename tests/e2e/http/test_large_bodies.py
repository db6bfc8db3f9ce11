"""Megabytes in and out: every size around a threshold, slow and vanishing clients, memory that is used up and given
back."""

import fcntl
import json
import termios
import threading
import time
from array import array
from contextlib import ExitStack

import numpy as np
import pytest

from tests.e2e.http.models import GENERATOR
from tests.support.connection import binary_body, connected, head, post, post_chunked
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.served import served

MIB = 1 << 20
LIMIT = 40 * MIB
BINARY_OUT = {"parameters": {"binary_data_output": True}}


@served(flags=(f"--model-memory-limit={LIMIT}",), limits={"pybackend.frontend.flow.SLOW_AFTER_SECONDS": 2})
def tight(repository):
    """A server whose models have 40 MB of tensor memory each: one large request fits, two do not."""
    write_model(repository, "identity", IDENTITY, identity_config("TYPE_UINT8"))
    config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_INT64", [2]))} ] output [ {tensors(OUT=("TYPE_INT64", [-1]))} ]
    """
    write_model(repository, "generator", GENERATOR, config)


def described(name, datatype, shape, blob):
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(blob)}}


def identity_request(blob, *, datatype="FP32", itemsize=4):
    """The body and headers of a request that sends these bytes and wants them back."""
    tensor = described("IN", datatype, [len(blob) // itemsize], blob)
    return binary_body({"inputs": [tensor], **BINARY_OUT}, blob)


def blob_of(reply):
    assert reply.status == 200, reply.body[:1000]
    return memoryview(reply.body)[int(reply.headers["inference-header-content-length"]) :]


def noise(size):
    return np.random.default_rng(size).bytes(size)


THRESHOLDS = [4092, 4096, 4100, 8188, 8192, 8196, 65_300, 65_536, 65_540, 262_144, MIB, MIB + 4, 3 * MIB + 20]


@pytest.mark.spec("srv-H12")
@pytest.mark.parametrize("way", ["at once", "chunked", "in pieces"])
@pytest.mark.parametrize("size", THRESHOLDS)
def test_sizes_around_every_threshold(connect, size, way):
    blob = noise(size)
    body, headers = identity_request(blob)
    connection, path = connect(), "/v2/models/identity/infer"
    for _ in range(2):
        if way == "chunked":
            connection.send(post_chunked(path, [body[:100], body[100:70_000], body[70_000:]], headers))
        elif way == "at once":
            connection.send(post(path, body, headers))
        else:
            connection.send(head("POST", path, {"Content-Length": len(body), **headers}))
            for begin in range(0, size + 300, 99_991):
                connection.send(body[begin : begin + 99_991])
        assert blob_of(connection.reply()) == blob


@pytest.mark.spec("srv-H12")
@pytest.mark.parametrize("chunked", [False, True])
def test_16_megabytes(connect, chunked):
    blob = noise(16 * MIB)
    body, headers = identity_request(blob)
    path = "/v2/models/identity/infer"
    connection = connect()
    if chunked:
        pieces = [body[begin : begin + 50_000] for begin in range(0, len(body), 50_000)]
        connection.send(post_chunked(path, pieces, headers))
    else:
        connection.send(post(path, body, headers))
    assert blob_of(connection.reply()) == blob


def several(sizes):
    """Tensors of every kind and source in one request, in this order: binary, JSON, nothing, binary BYTES, binary."""
    strings = b"".join(len(piece).to_bytes(4, "little") + piece for piece in [noise(size) for size in (3, 9000, 0, 70)])
    blobs = [noise(sizes[0]), b"", strings, noise(sizes[1])]
    inputs = [
        described("INT8", "INT8", [sizes[0]], blobs[0]),
        {"name": "FP64", "datatype": "FP64", "shape": [3], "data": [0.5, 1.5, 2.5]},
        described("UINT16", "UINT16", [0], b""),
        described("BYTES", "BYTES", [4], strings),
        described("FP32", "FP32", [sizes[1] // 4], blobs[3]),
    ]
    return inputs, blobs


@pytest.mark.spec("srv-H12")
@pytest.mark.parametrize("sizes", [(100, 100_000), (100_000, 100), (2 * MIB, 3 * MIB), (8192, 60_000), (0, 70_000)])
@pytest.mark.parametrize("chunked", [False, True])
def test_several_tensors(connect, sizes, chunked):
    inputs, blobs = several(sizes)
    outputs = [{"name": tensor["name"], "parameters": {"binary_data": "data" not in tensor}} for tensor in inputs]
    body, headers = binary_body({"id": "many", "inputs": inputs, "outputs": outputs}, *blobs)
    path = "/v2/models/types/infer"
    connection = connect()
    connection.send(post_chunked(path, [body], headers) if chunked else post(path, body, headers))
    reply = connection.reply()
    cut = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:cut])["outputs"] == inputs
    assert reply.body[cut:] == b"".join(blobs)


@pytest.mark.spec("srv-H12", "srv-H07")
def test_megabytes_of_json(server):
    values = np.random.default_rng(1).integers(0, 1 << 20, 200_000).tolist()
    tensor = {"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": values}
    reply = server.infer("identity", {"inputs": [tensor]})
    assert reply.json["outputs"][0]["data"] == values


@pytest.mark.spec("srv-H41")
def test_large_and_small_requests_alternate(connect):
    """Pipelined, so that each large body ends within a segment that goes on with the next request."""
    blobs = [noise(size) for size in (300_000, 40, 70_000, 1_000_000, 12)]
    requests = []
    for blob in blobs:
        body, headers = identity_request(blob)
        requests += [post("/v2/models/identity/infer", body, headers), head("GET", "/v2/models/identity")]
    connection = connect()
    sender = threading.Thread(target=lambda: connection.send(b"".join(requests)))
    sender.start()
    for blob in blobs:
        assert blob_of(connection.reply()) == blob
        assert connection.reply().json["name"] == "identity"
    sender.join()


REFUSED = {
    "unknown model": (404, "unknown", "FP32", [MIB], "Request for unknown model: 'unknown' is not found"),
    "another shape": (400, "add_sub", "FP32", [MIB], "[request id: <id_unknown>] expected 2 inputs but got 1 inputs"),
    "another datatype": (
        400,
        "identity",
        "INT32",
        [MIB],
        "[request id: <id_unknown>] inference input 'IN' data-type is",
    ),
    "another size": (
        400,
        "identity",
        "FP32",
        [MIB + 1],
        "[request id: <id_unknown>] input byte size mismatch for input",
    ),
}


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("status", "model", "datatype", "shape", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_bodies_are_read_to_their_end(connect, status, model, datatype, shape, message, chunked):
    """The client gets its answer although it sent everything first, and its connection goes on."""
    blob = bytes(4 * MIB)
    body, headers = binary_body({"inputs": [described("IN", datatype, shape, blob)]}, blob)
    path = f"/v2/models/{model}/infer"
    connection = connect()
    for _ in range(2):
        connection.send(post_chunked(path, [body], headers) if chunked else post(path, body, headers))
        reply = connection.reply()
        assert reply.status == status
        assert reply.error.startswith(message)
    good, headers = identity_request(bytes(8))
    connection.send(post("/v2/models/identity/infer", good, headers))
    assert connection.reply().status == 200


# --- slow and vanishing clients -------------------------------------------------------------------------------------


def generate(count, start, **members):
    """A small request for a large reply."""
    tensor = {"name": "IN", "datatype": "INT64", "shape": [2], "data": [count, start]}
    return post("/v2/models/generator/infer", json.dumps({"inputs": [tensor], **(members or BINARY_OUT)}).encode())


def numbers_of(reply):
    return np.frombuffer(blob_of(reply), dtype="<i8")


def test_slow_reader_gets_its_own_data_and_holds_up_nobody(connect):
    """32 MB that are read late: they must not change although others fill the same model's memory meanwhile."""
    count, others = 4 * MIB, 64 * 1024
    slow, quick = connect(receive_buffer_bytes=4096), connect()
    slow.send(generate(count, 7))
    slow.wait_for_bytes(100)
    for start in range(30):
        quick.send(generate(others, start))
        assert (numbers_of(quick.reply()) == np.arange(start, start + others)).all()
    found = numbers_of(slow.reply())
    assert len(found) == count
    assert (found == np.arange(7, 7 + count)).all()
    slow.send(generate(3, 1))
    assert numbers_of(slow.reply()).tolist() == [1, 2, 3]


def test_pipelined_large_replies_wait_for_each_other(connect):
    """A client that does not read gets one reply at a time, and all of them right."""
    count = MIB
    connection = connect(receive_buffer_bytes=4096)
    connection.send(b"".join(generate(count, start) + head("GET", "/v2/models/generator") for start in range(5)))
    for start in range(5):
        assert (numbers_of(connection.reply()) == np.arange(start, start + count)).all()
        assert connection.reply().json["name"] == "generator"


def test_pipelined_large_json_replies(connect):
    count = 1_500_000
    connection = connect(receive_buffer_bytes=4096)
    connection.send(
        (generate(count, 10**6, id="large") + head("GET", "/v2/models/generator")) * 2 + generate(1, 5, id="x")
    )
    connection.wait_for_bytes(1000)
    for _ in range(2):
        data = connection.reply().body.partition(b'"data":')[2]
        assert np.fromstring(data[1:-4].decode(), sep=",", dtype=np.int64).tolist() == list(range(10**6, 10**6 + count))
        assert connection.reply().json["name"] == "generator"
    assert connection.reply().json["outputs"][0]["data"] == [5]


def wait_until_read(server, connection):
    unsent = array("i", [1])
    while unsent[0]:
        fcntl.ioctl(connection.socket.fileno(), termios.TIOCOUTQ, unsent)
    server.get("/v2/health/live")
    server.get("/v2/health/live")


def answered(server, data, deadline_s=60):
    """Ask until there is an answer other than 503: when a client has gone, the server notices a moment later."""
    end_s = time.monotonic() + deadline_s
    while True:
        with connected(server.port) as connection:
            connection.send(data)
            reply = connection.reply()
        if reply.status != 503:
            return reply
        assert time.monotonic() < end_s, reply.error


@pytest.mark.parametrize("how", ["reset", "close"])
def test_client_that_vanishes_within_its_body(tight, how):
    """What it had sent is forgotten: the next large request finds room, any number of times."""
    blob = noise(32 * MIB)
    body, headers = identity_request(blob, datatype="UINT8", itemsize=1)
    request = post("/v2/models/identity/infer", body, headers)
    for cut in (2 * MIB, 20 * MIB, len(request) - 1):
        with connected(tight.port) as connection:
            connection.send(memoryview(request)[:cut])
            getattr(connection, how)()
    assert blob_of(answered(tight, request)) == blob


@pytest.mark.parametrize("how", ["reset", "close"])
def test_client_that_vanishes_within_its_chunked_body(tight, how):
    blob = noise(32 * MIB)
    body, headers = identity_request(blob, datatype="UINT8", itemsize=1)
    request = post_chunked("/v2/models/identity/infer", [body], headers)
    with connected(tight.port) as connection:
        connection.send(memoryview(request)[: 20 * MIB])
        getattr(connection, how)()
    assert blob_of(answered(tight, request)) == blob


@pytest.mark.parametrize("how", ["reset", "close"])
def test_client_that_vanishes_within_its_reply(tight, how):
    for start in range(3):
        with connected(tight.port, receive_buffer_bytes=4096) as connection:
            connection.send(generate(4 * MIB, start))
            connection.wait_for_bytes(1000)
            getattr(connection, how)()
    assert (numbers_of(answered(tight, generate(4 * MIB, 5))) == np.arange(5, 5 + 4 * MIB)).all()


@pytest.mark.parametrize("chunked", [False, True])
def test_input_memory_that_is_used_up(tight, chunked):
    """What has arrived of one client's body leaves no room for another's, who is told so."""
    blob = noise(32 * MIB)
    body, headers = identity_request(blob, datatype="UINT8", itemsize=1)
    path = "/v2/models/identity/infer"
    request = post(path, body, headers)
    other = post_chunked(path, [body], headers) if chunked else request
    small, small_headers = identity_request(b"small", datatype="UINT8", itemsize=1)
    with connected(tight.port) as first, connected(tight.port) as second:
        first.send(memoryview(request)[: 20 * MIB])
        wait_until_read(tight, first)
        second.send(other)
        reply = second.reply()
        assert reply.status == 503
        assert reply.error.startswith("no input memory left for model 'identity': ")
        assert reply.error.endswith("raise --model-memory-limit")
        second.send(post(path, small, small_headers))
        assert blob_of(second.reply()) == b"small"
        first.send(memoryview(request)[20 * MIB :])
        assert blob_of(first.reply()) == blob
    assert blob_of(answered(tight, other)) == blob


def test_announced_bytes_take_no_memory(tight):
    """Only those that have arrived do: however many clients say that they will send much, others are served."""
    blob = noise(32 * MIB)
    body, headers = identity_request(blob, datatype="UINT8", itemsize=1)
    request = post("/v2/models/identity/infer", body, headers)
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(tight.port)) for _ in range(4)]
        for connection in idle:
            connection.send(memoryview(request)[:MIB])
            wait_until_read(tight, connection)
        with connected(tight.port) as connection:
            for _ in range(2):
                connection.send(request)
                assert blob_of(connection.reply()) == blob
        # What lies unused makes room for those who go on.
        idle[0].send(memoryview(request)[MIB:])
        assert blob_of(idle[0].reply()) == blob


def test_slow_senders_make_room(tight):
    """A client that has sent much and goes on slowly keeps it only as long as nobody needs it."""
    blob = noise(32 * MIB)
    body, headers = identity_request(blob, datatype="UINT8", itemsize=1)
    request = post("/v2/models/identity/infer", body, headers)
    with connected(tight.port) as idle:
        idle.send(memoryview(request)[: 30 * MIB])
        wait_until_read(tight, idle)
        assert blob_of(answered(tight, request, deadline_s=30)) == blob
        assert idle.at_end()


def test_request_larger_than_all_memory(tight, snapshot):
    blob = bytes(LIMIT + MIB)
    body, headers = identity_request(blob, datatype="UINT8", itemsize=1)
    reply = tight.infer("identity", body, headers)
    assert reply.status == 400
    assert reply.error == snapshot


def test_reply_larger_than_all_memory(tight):
    with connected(tight.port) as connection:
        connection.send(generate(LIMIT // 8 + MIB, 0))
        reply = connection.reply()
        assert reply.status in {500, 503}
        assert "memory" in reply.error
        connection.send(generate(4, 0))
        assert numbers_of(connection.reply()).tolist() == [0, 1, 2, 3]
