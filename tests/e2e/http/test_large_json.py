"""Megabytes of JSON: read in slices, so that others are answered meanwhile, and refused early where no model takes
them."""

import json

import numpy as np
import pytest

from tests.support.connection import binary_body, connected, head, post, post_chunked

MIB = 1 << 20
PATH = "/v2/models/types/infer"
LIVE = head("GET", "/v2/health/live")


def large_document(count):
    values = np.random.default_rng(count).integers(-1000, 1000, count)
    texts = [f"element {number}, [{{" for number in range(20_000)]
    inputs = [
        {"name": "INT32", "datatype": "INT32", "shape": [count], "data": values.reshape(-1, 10).tolist()},
        {"name": "BYTES", "datatype": "BYTES", "shape": [20_000], "data": texts},
    ]
    return {"id": "large", "inputs": inputs}, values, texts


def check(reply, values, texts):
    assert reply.status == 200, reply.body[:1000]
    outputs = {output["name"]: output["data"] for output in json.loads(reply.body)["outputs"]}
    assert (np.array(outputs["INT32"]) == values).all()
    assert outputs["BYTES"] == texts


@pytest.mark.parametrize("way", ["at once", "chunked", "with its length"])
def test_large_documents(connect, way):
    """Twice on a connection, with another request behind each."""
    document, values, texts = large_document(400_000)
    text = json.dumps(document).encode()
    if way == "chunked":
        request = post_chunked(PATH, [text[at : at + 100_000] for at in range(0, len(text), 100_000)])
    else:
        headers = {"Inference-Header-Content-Length": len(text)} if way == "with its length" else {}
        request = post(PATH, text, headers)
    connection = connect()
    for _ in range(2):
        connection.send(request + LIVE)
        check(connection.reply(), values, texts)
        assert connection.reply().status == 200


@pytest.mark.parametrize("in_chunks", [False, True])
def test_large_json_before_binary_tensors(connect, in_chunks):
    """The binary part may arrive while the JSON part is being read."""
    document, values, texts = large_document(200_000)
    blob = np.arange(MIB, dtype=np.float32).tobytes()
    described = {"name": "FP32", "datatype": "FP32", "shape": [MIB], "parameters": {"binary_data_size": len(blob)}}
    document["inputs"].insert(1, described)
    document["outputs"] = [{"name": "INT32"}, {"name": "BYTES"}, {"name": "FP32", "parameters": {"binary_data": True}}]
    body, headers = binary_body(document, blob)
    connection = connect()
    for _ in range(2):
        connection.send((post_chunked(PATH, [body], headers) if in_chunks else post(PATH, body, headers)) + LIVE)
        reply = connection.reply()
        cut = int(reply.headers["inference-header-content-length"])
        assert reply.body[cut:] == blob
        outputs = {output["name"]: output.get("data") for output in json.loads(reply.body[:cut])["outputs"]}
        assert (np.array(outputs["INT32"]) == values).all()
        assert outputs["BYTES"] == texts
        assert connection.reply().status == 200


def test_clients_that_vanish_while_their_request_is_read(server):
    document, values, texts = large_document(1_000_000)
    request = post(PATH, json.dumps(document).encode())
    for how in ("close", "reset") * 2:
        with connected(server.port) as connection:
            connection.send(request)
            getattr(connection, how)()
    with connected(server.port) as connection:
        connection.send(request)
        check(connection.reply(), values, texts)


def test_what_no_model_takes(connect):
    """The connection goes on, since the body is read to its end."""
    begin = b'{"inputs":[{"name":"INT32","datatype":"INT32","data":[1],"shape":['
    connection = connect()
    for text, message in (
        (begin + b"1," * (4 * MIB) + b"1]}]}", "bytes beside its tensors' data"),
        (begin[:-1] + b"[" * (4 * MIB), "JSON nesting depth exceeds maximum allowed limit"),
        (begin.replace(b"1]", b"[1]," * MIB + b"1]") + b"1]}]}", "Shape does not match true shape"),
    ):
        connection.send(post(PATH, text) + LIVE)
        reply = connection.reply()
        assert reply.status in {400, 500}
        assert message in reply.error
        assert connection.reply().status == 200


def binary_texts(count):
    return b"".join(b"\2\0\0\0ab" if number % 3 else b"\1\0\0\0a" for number in range(count))


def test_binary_texts_are_counted_in_slices(connect):
    blob = binary_texts(2_000_000)
    connection = connect()
    for shape, status in (([2_000_000], 200), ([2_000_001], 400)):
        tensor = {"name": "BYTES", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(blob)}}
        body, headers = binary_body({"inputs": [tensor], "parameters": {"binary_data_output": True}}, blob)
        connection.send(post(PATH, body, headers))
        reply = connection.reply()
        assert reply.status == status
        assert status != 200 or reply.body.endswith(blob)
