"""How much a client may send: the flag, what it bounds and what it does not, and memory that is used up."""

import json
import subprocess
import sys

import pytest

from tests.support.connection import binary_body, connected, head, post, post_chunked
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served

LIMIT = 100_000
ADVICE = f"the maximum allowed value of {LIMIT} bytes. Use --http-max-input-size to increase the limit."
RAW = {"Inference-Header-Content-Length": "0"}
PATH = "/v2/models/identity/infer"


@served(flags=(f"--http-max-input-size={LIMIT}",))
def bounded(repository):
    """A server that takes JSON up to 100 kB, with two models."""
    write_model(repository, "identity", IDENTITY, identity_config())
    write_model(repository, "text", IDENTITY, identity_config("TYPE_STRING"))


def document(count, value=0):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [count], "data": [value] * count}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def too_large(size):
    return (
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {LIMIT} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.spec("srv-H39", "srv-H10")
def test_json_at_and_over_the_limit(bounded):
    body = document(10)
    assert bounded.infer("identity", body + b" " * (LIMIT - len(body))).status == 200
    over = body + b" " * (LIMIT + 1 - len(body))
    reply = bounded.infer("identity", over)
    assert (reply.status, reply.error) == (400, too_large(LIMIT + 1))


@pytest.mark.spec("srv-H39", "srv-H10")
@pytest.mark.parametrize("chunked", [False, True])
def test_json_part_over_the_limit(bounded, chunked):
    text = document(10) + b" " * LIMIT
    headers = {"Inference-Header-Content-Length": len(text)}
    with connected(bounded.port) as connection:
        connection.send(post_chunked(PATH, [text], headers) if chunked else post(PATH, text, headers))
        reply = connection.reply()
        assert (reply.status, reply.error) == (400, too_large(len(text)))
        connection.send(post(PATH, document(1)))
        assert connection.reply().status == 200


@pytest.mark.spec("srv-H39", "srv-H10")
def test_chunked_json_over_the_limit_is_refused_as_it_comes(bounded):
    """Its whole size is known to nobody: the message tells what was there when it became too much."""
    with connected(bounded.port) as connection:
        connection.send(post_chunked(PATH, [document(10), *[b" " * 1000] * 300]))
        reply = connection.reply()
        assert reply.status == 400
        size = int(reply.error.split()[4])
        assert LIMIT < size <= LIMIT + 300_000
        assert reply.error == too_large(size)


@pytest.mark.spec("srv-H39", "srv-H10")
def test_one_json_tensor_over_the_limit(bounded):
    """Short numbers in JSON are long ones in memory."""
    reply = bounded.infer("identity", document(LIMIT // 4 + 1))
    assert (reply.status, reply.error) == (
        400,
        f"JSON input 'IN' has a byte_size ({LIMIT + 4} bytes) that exceeds {ADVICE}",
    )
    assert bounded.infer("identity", document(LIMIT // 4)).status == 200
    strings = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [30_000], "data": [""] * 30_000}]}
    text = json.dumps(strings, separators=(",", ":")).encode()
    reply = bounded.infer("text", text)
    assert reply.error == f"JSON input 'IN' has a byte_size (120000 bytes) that exceeds {ADVICE}"


@pytest.mark.spec("srv-H39", "srv-H10")
@pytest.mark.parametrize("extra", [4, 500_000])
def test_raw_body_over_the_limit(bounded, extra):
    assert bounded.infer("identity", bytes(LIMIT), RAW).status == 200
    reply = bounded.infer("identity", bytes(LIMIT + extra), RAW)
    assert (reply.status, reply.error) == (
        400,
        f"Raw input has a byte_size ({LIMIT + extra} bytes) that exceeds {ADVICE}",
    )


@pytest.mark.spec("srv-H39")
@pytest.mark.parametrize("chunked", [False, True])
def test_binary_tensors_are_not_bounded_by_it(bounded, chunked):
    blob = bytes(4 * LIMIT)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [LIMIT], "parameters": {"binary_data_size": len(blob)}}
    body, headers = binary_body({"inputs": [tensor], "parameters": {"binary_data_output": True}}, blob)
    with connected(bounded.port) as connection:
        connection.send(post_chunked(PATH, [body], headers) if chunked else post(PATH, body, headers))
        reply = connection.reply()
        assert reply.status == 200
        assert reply.body.endswith(blob)


@pytest.mark.spec("srv-H39")
@pytest.mark.parametrize("value", ["0", "-1"])
def test_limit_must_be_positive(tmp_path, value):
    command = [
        sys.executable,
        "-m",
        "pybackend",
        "serve",
        str(tmp_path),
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
    ]
    ended = subprocess.run(
        [*command, f"--http-max-input-size={value}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == "Error: --http-max-input-size must be greater than 0.\n"


@pytest.mark.spec("srv-H39")
def test_default_limit(server):
    body = document(10) + b" " * (64 << 20)
    reply = server.infer("identity", body)
    assert reply.status == 400
    assert reply.error == (
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of 67108864 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_refusal_before_the_body(bounded):
    """Who asks with Expect, or reads while it sends, need not send all of a body that will not be taken."""
    with connected(bounded.port) as connection:
        headers = {"Content-Length": 10 * LIMIT, "Expect": "100-continue"}
        connection.send(head("POST", PATH, headers))
        first = connection.reply()
        if first.status == 100:
            connection.send(bytes(10 * LIMIT))
            first = connection.reply()
        assert (first.status, first.error) == (400, too_large(10 * LIMIT))
