"""The catalogue of bad infer requests, each sent in every way in which a body can arrive: status and text word for word."""

from __future__ import annotations

import json
import struct

import pytest

from tests.support.connection import binary_body, post, post_chunked

pytestmark = pytest.mark.e2e

PADDING = 70_000
"""White space behind the JSON that makes a body a large one."""

RID = "[request id: <id_unknown>] "
SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
ABSENT = object()


def tensor(name="INPUT0", **changes):
    item = {"name": name, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} | changes
    return {key: value for key, value in item.items() if value is not ABSENT}


def binary(size, name="INPUT0", **changes):
    return tensor(name, data=ABSENT, parameters={"binary_data_size": size}, **changes)


def request(*inputs, **members):
    return {"inputs": list(inputs) or [tensor("INPUT0"), tensor("INPUT1")]} | members


def one(**changes):
    return request(tensor(**changes), tensor("INPUT1"))


def to_output(**parameters):
    return request(outputs=[{"name": "OUTPUT0", "parameters": parameters}])


def access(field, wanted):
    return f"Unable to parse '{field}': attempt to access JSON {wanted}"


def missing(field):
    return f"Unable to parse '{field}': attempt to access non-existing object member '{field}'"


@pytest.fixture(params=["small", "large", "chunked"])
def send(request, connect):
    """Sends a JSON document, or text, to a model's infer route in one of the three ways that a server tells apart."""

    def send(document, model="add_sub", headers=None, padding=PADDING):
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        connection, path = connect(), f"/v2/models/{model}/infer"
        if request.param == "small":
            connection.send(post(path, text, headers))
        elif request.param == "large":
            connection.send(post(path, text + b" " * padding, headers))
        else:
            connection.send(post_chunked(path, [text[:1], text[1:7], text[7:]], headers))
        reply = connection.reply()
        # Whatever was wrong with the request, the connection goes on.
        connection.send(post("/v2/models/identity/infer", GOOD))
        assert connection.reply().status == 200
        return reply

    return send


GOOD = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1]}]}'

MALFORMED = {
    b"nonsense": "Invalid value. at 1",
    b"x": "Invalid value. at 0",
    b'{"inputs": [] "id": ""}': "Missing a comma or } after an object member. at 14",
    b'{"inputs" []}': "Missing a colon after a name of object member. at 10",
    b'{"inputs": [1 2]}': "Missing a comma or ] after an array element. at 14",
    b"{inputs: []}": "Missing a name for object member. at 1",
    b'{"inputs": []} x': "The document root must not be followed by other values. at 15",
    b'{"id": 1e999}': "Number too big to be stored in double. at 7",
}


@pytest.mark.spec("srv-H10", "srv-H11")
@pytest.mark.parametrize(("text", "reason"), MALFORMED.items())
def test_malformed_json(send, text, reason):
    reply = send(text)
    assert reply.status == 500
    assert reply.error.startswith(f"failed to parse the request JSON buffer: {reason}")


@pytest.mark.spec("srv-H10", "srv-H11")
def test_malformed_json_of_white_space(server):
    reply = server.infer("add_sub", b" " * 5)
    assert reply.status == 500
    assert reply.error.startswith("failed to parse the request JSON buffer: The document is empty. at 5")


@pytest.mark.spec("srv-H10", "srv-H11")
def test_truncated_json(server):
    """Cut anywhere, it is a parse error with an offset, and never anything else."""
    text = json.dumps(request(id="a\\u00e9")).encode()
    for end in range(1, len(text)):
        reply = server.infer("add_sub", text[:end])
        assert reply.status == 500
        assert reply.error.startswith("failed to parse the request JSON buffer: "), text[:end]
        assert reply.error.split(" at ")[1].split(".")[0].isdecimal()


JSON_TYPES = {
    "no object": ([], access("inputs", "non-object as object")),
    "inputs missing": ({}, missing("inputs")),
    "inputs no array": ({"inputs": {}}, access("inputs", "non-array as array")),
    "no name": (one(name=ABSENT), missing("name")),
    "name no string": (one(name=1), access("name", "non-string as string")),
    "no datatype": (one(datatype=ABSENT), missing("datatype")),
    "datatype no string": (one(datatype=32), access("datatype", "non-string as string")),
    "no shape": (one(shape=ABSENT), missing("shape")),
    "shape no array": (one(shape=4), access("shape", "non-array as array")),
    "negative shape": (one(shape=[-4]), access("shape", "non-unsigned-integer as unsigned-integer")),
    "float in shape": (one(shape=[4.0]), access("shape", "non-unsigned-integer as unsigned-integer")),
    "text in shape": (one(shape=["4"]), access("shape", "non-unsigned-integer as unsigned-integer")),
    "data no array": (one(data=1), access("data", "non-array as array")),
    "data no array inside": (one(data=[[1, 2], 3]), access("data", "non-array as array")),
    "float no number": (one(data=[1, 2, 3, "4"]), access("data", "non-number as double")),
    "float null": (one(data=[1, 2, None, 4]), access("data", "non-number as double")),
    "float bool": (one(data=[True, 2, 3, 4]), access("data", "non-number as double")),
    "bool no bool": (one(datatype="BOOL", data=[True, 0, 1, 1]), access("data", "non-boolean as boolean")),
    "signed no integer": (
        one(datatype="INT32", data=[1, 1.0, 1, 1]),
        access("data", "non-signed-integer as signed-integer"),
    ),
    "unsigned negative": (
        one(datatype="UINT64", data=[1, -1, 1, 1]),
        access("data", "non-unsigned-integer as unsigned-integer"),
    ),
    "bytes no string": (
        one(datatype="BYTES", data=["a", 1, "b", "c"]),
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    "too many elements": (
        one(data=[1, 2, 3, 4, 5]),
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "too many strings": (
        one(datatype="BYTES", data=["a"] * 5),
        "Unable to parse 'data': shape does not match true shape of 'data' field",
    ),
    "too few elements": (one(data=[1, 2, 3]), "Failed to parse 'data' field: shape does not match true shape"),
    "too few strings": (
        one(datatype="BYTES", data=["a"]),
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    "id no string": (request(id=3), access("id", "non-string as string")),
    "binary size no integer": (
        one(data=ABSENT, parameters={"binary_data_size": "16"}),
        access("binary_data_size", "non-unsigned-integer as unsigned-integer"),
    ),
    "outputs no array": (request(outputs={}), access("outputs", "non-array as array")),
    "output without name": (request(outputs=[{}]), missing("name")),
    "sequence_id": (request(parameters={"sequence_id": 1.5}), access("sequence_id", "non-string as string")),
    "sequence_start": (request(parameters={"sequence_start": 1}), access("sequence_start", "non-boolean as boolean")),
    "sequence_end": (request(parameters={"sequence_end": "x"}), access("sequence_end", "non-boolean as boolean")),
    "priority": (
        request(parameters={"priority": -1}),
        access("priority", "non-unsigned-integer as unsigned-integer"),
    ),
    "timeout": (request(parameters={"timeout": "1"}), access("timeout", "non-unsigned-integer as unsigned-integer")),
    "binary_data_output": (
        request(parameters={"binary_data_output": 1}),
        access("binary_data_output", "non-boolean as boolean"),
    ),
    "binary_data": (to_output(binary_data=1), access("binary_data", "non-boolean as boolean")),
}


@pytest.mark.spec("srv-H10", "srv-H11")
@pytest.mark.parametrize(("document", "message"), JSON_TYPES.values(), ids=JSON_TYPES)
def test_json_of_the_wrong_type(send, document, message):
    reply = send(document)
    assert reply.status == 500
    assert reply.error.startswith(message)


JSON_CONTENT = {
    "no data": (one(data=ABSENT), 400, SOURCES + "no field is set"),
    "two sources": (one(parameters={"binary_data_size": 16}), 400, SOURCES + "set 'data' 'binary_data_size'"),
    "unknown datatype": (one(datatype="FP31"), 400, "invalid datatype for input INPUT0"),
    "binary without header": (
        one(data=ABSENT, parameters={"binary_data_size": 16}),
        400,
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs "
        "in binary data format",
    ),
    "element count overflow": (
        one(shape=[2**32, 2**31]),
        400,
        "invalid shape for input 'INPUT0': shape [4294967296,2147483648] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "byte size overflow": (
        one(shape=[2**61]),
        400,
        "byte size overflow for input 'INPUT0': element count (2305843009213693952) * data type size (4) exceeds "
        "maximum allowed size (9223372036854775807)",
    ),
    "one tensor over the limit": (
        one(shape=[2**40]),
        400,
        "JSON input 'INPUT0' has a byte_size (4398046511104 bytes) that exceeds the maximum allowed value of 67108864 "
        "bytes. Use --http-max-input-size to increase the limit.",
    ),
    "reserved parameter": (
        request(parameters={"triton_x": 1}),
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    "parameter of another type": (
        request(parameters={"k": [1]}),
        400,
        "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    "duplicate input": (
        request(tensor(), tensor(), id="7"),
        400,
        "[request id: 7] input 'INPUT0' already exists in request",
    ),
    "duplicate output": (
        request(outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]),
        400,
        RID + "output 'OUTPUT0' already exists in request",
    ),
    "unknown input": (
        request(tensor(), tensor("INPUT9")),
        400,
        "unexpected inference input 'INPUT9' for model 'add_sub'",
    ),
    "unknown output": (
        request(outputs=[{"name": "OUTPUT9"}]),
        400,
        "unexpected inference output 'OUTPUT9' for model 'add_sub'",
    ),
    "no inputs": (
        {"inputs": []},
        400,
        RID + "expected 2 inputs but got 0 inputs for model 'add_sub'. Got input(s) [], but missing required input(s) "
        "['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    "too few inputs": (
        request(tensor(), id="x y"),
        400,
        "[request id: x y] expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "too many inputs": (
        request(tensor(), tensor("INPUT1"), tensor("INPUT2")),
        400,
        RID + "expected 2 inputs but got 3 inputs for model 'add_sub'. Got input(s) ['INPUT0','INPUT1','INPUT2'], but "
        "missing required input(s) []. Please provide all required input(s).",
    ),
    "another datatype": (
        one(datatype="INT32"),
        400,
        RID + "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
    ),
    "another shape": (
        one(shape=[2, 2]),
        400,
        RID + "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [2,2]. ",
    ),
}


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize(("document", "status", "message"), JSON_CONTENT.values(), ids=JSON_CONTENT)
def test_json_that_asks_wrongly(send, document, status, message):
    reply = send(document)
    assert (reply.status, reply.error[: len(message)]) == (status, message)


X, Y, Z = (tensor(f"IN_{name}", shape=[1, 4]) for name in "XYZ")
BATCHED = {
    "missing batch dimension": (
        request(tensor("IN_X", shape=[], data=[1]), Y),
        "input 'IN_X' has no shape but model requires batch dimension for 'batched'",
    ),
    "inconsistent batch": (
        request(X, tensor("IN_Y", shape=[2, 4], data=[1] * 8)),
        "input 'IN_Y' batch size does not match other inputs for 'batched'",
    ),
    "batch too large": (
        request(tensor("IN_X", shape=[9, 4], data=[1] * 36), tensor("IN_Y", shape=[9, 1], data=[1] * 9)),
        "inference request batch-size must be <= 8 for 'batched'",
    ),
    "another shape": (
        request(tensor("IN_X", shape=[1, 3], data=[1] * 3), Y),
        f"unexpected shape for input 'IN_X' for model 'batched'. Expected [-1,4], got [1,3]. {NOTE}",
    ),
    "no batch dimension in front": (
        request(tensor("IN_X", shape=[4]), tensor("IN_Y", shape=[4])),
        f"unexpected shape for input 'IN_X' for model 'batched'. Expected [-1,4], got [4]. {NOTE}",
    ),
    "too few where one is optional": (
        request(X),
        "expected number of inputs between 2 and 3 but got 1 inputs for model 'batched'. Got input(s) ['IN_X'], but "
        "missing required input(s) ['IN_Y']. Please provide all required input(s).",
    ),
    "the optional one instead": (
        request(X, Z),
        "expected number of inputs between 2 and 3 but got 2 inputs for model 'batched'. Got input(s) ['IN_X','IN_Z'], "
        "but missing required input(s) ['IN_Y']. Please provide all required input(s).",
    ),
    "too many": (
        request(X, Y, Z, tensor("IN_W", shape=[1, 4])),
        "expected number of inputs between 2 and 3 but got 4 inputs for model 'batched'. Got input(s) ['IN_X','IN_Y',"
        "'IN_Z','IN_W'], but missing required input(s) []. Please provide all required input(s).",
    ),
}


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize(("document", "message"), BATCHED.values(), ids=BATCHED)
def test_batching_model(send, document, message):
    reply = send(document, "batched")
    assert reply.status == 400
    assert reply.error.startswith(RID + message)


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize("depth", [100, 101, 5000, 200_000])
def test_json_that_is_nested_too_deep(server, depth):
    text = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":%b}]}' % (b"[" * depth + b"]" * depth)
    reply = server.infer("add_sub", text)
    assert reply.status == 400
    assert "JSON nesting depth exceeds maximum allowed limit (100)" in reply.error


@pytest.mark.spec("srv-H10")
def test_json_that_is_nested_just_enough(server):
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":%b7%b}]}' % (b"[" * 99, b"]" * 99)
    assert server.infer("identity", text).json["outputs"][0]["data"] == [7.0]


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize("size", [100, PADDING])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("1.5", "Unable to parse Inference-Header-Content-Length, got: 1.5"),
        (
            "2147483648",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            "2147483648",
        ),
        (
            "9" * 4000,
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            + "9" * 4000,
        ),
        ("-1", "inference header size should be in range (0, SIZE), got: -1"),
        ("100000", "inference header size should be in range (0, SIZE), got: 100000"),
    ],
)
def test_header_length(server, size, value, message):
    reply = server.infer("add_sub", bytes(size), {"Inference-Header-Content-Length": value})
    assert reply.status == 400
    assert reply.error.startswith(message.replace("SIZE", str(size)))


@pytest.mark.spec("srv-H10")
def test_body_shorter_than_the_header_length(connect):
    """Only a body without an announced length can turn out to be too short."""
    connection = connect()
    headers = {"Inference-Header-Content-Length": 50}
    connection.send(post_chunked("/v2/models/add_sub/infer", [b'{"inputs":', b"[]}"], headers))
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error.startswith(
        (
            "unexpected size for request JSON, expecting 37 more bytes",
            "inference header size should be in range (0, 13), got: 50",
        )
    )


TWO = request(binary(16), binary(16, "INPUT1"))
BLOBS = {
    "first cut short": (
        TWO,
        10,
        "unexpected size for input 'INPUT0', expecting 6 additional bytes for model 'add_sub'",
    ),
    "second cut short": (
        TWO,
        31,
        "unexpected size for input 'INPUT1', expecting 1 additional bytes for model 'add_sub'",
    ),
    "nothing came": (TWO, 0, "unexpected size for input 'INPUT0', expecting 16 additional bytes for model 'add_sub'"),
    "left over": (TWO, 33, "unexpected additional input data for model 'add_sub'"),
    "left over behind JSON": (request(), 1, "unexpected additional input data for model 'add_sub'"),
    "too large for the shape": (
        request(binary(20), binary(16, "INPUT1")),
        36,
        RID + "input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 16, got 20",
    ),
}


@pytest.mark.spec("srv-H10", "srv-H12")
@pytest.mark.parametrize("way", ["small", "large JSON part", "chunked"])
@pytest.mark.parametrize(("document", "blob_bytes", "message"), BLOBS.values(), ids=BLOBS)
def test_binary_tensors(connect, way, document, blob_bytes, message):
    connection = connect()
    text = json.dumps(document).encode() + b" " * (PADDING if way == "large JSON part" else 0)
    headers, body = {"Inference-Header-Content-Length": len(text)}, text + bytes(blob_bytes)
    path = "/v2/models/add_sub/infer"
    connection.send(
        post_chunked(path, [body[:50], body[50:]], headers) if way == "chunked" else post(path, body, headers)
    )
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error.startswith(message)
    connection.send(post("/v2/models/identity/infer", GOOD))
    assert connection.reply().status == 200


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize("padding", [0, PADDING])
def test_announced_size_is_not_allocated(connect, padding):
    text = json.dumps(request(binary(2**62), binary(16, "INPUT1"))).encode() + b" " * padding
    headers, path = {"Inference-Header-Content-Length": len(text)}, "/v2/models/add_sub/infer"
    connection = connect()
    connection.send(post(path, text + bytes(16), headers))
    assert connection.reply().error == (
        f"unexpected size for input 'INPUT0', expecting {2**62 - 16} additional bytes for model 'add_sub'"
    )
    # In chunks nobody knows how much is still to come; the size is held against the shape at once.
    connection.send(post_chunked(path, [text, bytes(16)], headers))
    assert connection.reply().error == (
        RID + f"input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 16, got {2**62}"
    )


def strings(*elements):
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


ELEMENTS = {
    "too many": (
        strings(*[b"x"] * 17),
        "unexpected number of string elements 17 for inference input 'IN' for model 'strings', expecting 16",
    ),
    "too few": (
        strings(*[b"x"] * 14),
        "expected 16 string elements for inference input 'IN' for model 'strings', got 14",
    ),
    "broken length": (
        strings(b"x", b"yy") + b"\1\0",
        "incomplete string length indicator for inference input 'IN' for model 'strings', expecting 4 bytes but only 2 "
        "bytes available. Please make sure the string length indicator is in one buffer.",
    ),
    "broken element": (
        strings(*[b"x"] * 15) + b"\5\0\0\0abc",
        "incomplete string data for inference input 'IN' for model 'strings', expecting string of length 5 but only 3 "
        "bytes available.",
    ),
    "large, too many": (
        strings(*[b"x" * 9000] * 17),
        "unexpected number of string elements 17 for inference input 'IN' for model 'strings', expecting 16",
    ),
    "large, broken element": (
        strings(*[b"x" * 9000] * 15) + b"\xff\xff\xff\xff",
        "incomplete string data for inference input 'IN' for model 'strings', expecting string of length 4294967295 "
        "but only 0 bytes available.",
    ),
}


@pytest.mark.spec("srv-H10")
def test_of_several_inputs_with_wrong_numbers_of_strings_the_last_is_named(server):
    """As the reference does for two of them."""
    pair = [{"name": name, "datatype": "BYTES", "shape": [16]} for name in ("IN0", "IN1")]
    few, many = strings(*[b"x"] * 14), strings(*[b"x"] * 17)
    document = {
        "inputs": [
            each | {"parameters": {"binary_data_size": len(blob)}} for each, blob in zip(pair, (few, many), strict=True)
        ]
    }
    reply = server.infer("two_strings", *binary_body(document, few, many))
    assert reply.error == (
        "[request id: <id_unknown>] unexpected number of string elements 17 for inference input 'IN1' for model "
        "'two_strings', expecting 16"
    )


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize(("blob", "message"), ELEMENTS.values(), ids=ELEMENTS)
def test_bytes_elements(server, blob, message):
    document = {"id": "9", "inputs": [binary(len(blob), "IN", datatype="BYTES", shape=[16])]}
    body, headers = binary_body(document, blob)
    reply = server.infer("strings", body, headers)
    assert reply.status == 400
    assert reply.error.startswith(f"[request id: 9] {message}")


@pytest.mark.spec("srv-H10")
def test_zero_size_tensors_are_legal(server):
    reply = server.infer("identity", {"inputs": [tensor("IN", shape=[0], data=[])]})
    assert reply.json["outputs"] == [tensor("OUT", shape=[0], data=[])]


ORDER = [
    ({"id": 1, "parameters": {"timeout": "x"}}, "Unable to parse 'id'"),
    ({"parameters": {"timeout": "x"}, "inputs": 1}, "Unable to parse 'timeout'"),
    ({"inputs": [tensor(datatype="X")], "outputs": 1}, "invalid datatype"),
    (request(binary(4), tensor(name=1)), "unexpected size for input 'INPUT0'"),
    (request(binary(2), outputs=1), "unexpected additional input data"),
    (request(tensor(), binary(3, "INPUT9"), outputs=[{}]), "Unable to parse 'name'"),
    (request(tensor(), binary(3, "INPUT9"), outputs=[{"name": "O"}]), "unexpected inference output 'O'"),
]


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize(("document", "message"), ORDER)
def test_first_fault_is_told(server, document, message):
    """Each request has two faults."""
    body, headers = binary_body(document, b"abc")
    assert server.infer("add_sub", body, headers).error.startswith(message)


@pytest.mark.spec("srv-H10")
def test_faults_before_the_body_come_first(server):
    length = {"Inference-Header-Content-Length": "x"}
    assert "unknown model" in server.infer("none", b"{", length).error
    assert "version 9 is not found" in server.infer("identity/versions/9", b"{", length).error
    assert server.infer("identity", b"{", length | {"Content-Encoding": "br"}).status == 501
    assert "Unable to parse Inference-Header" in server.infer("identity", b"{", length).error


@pytest.mark.spec("srv-H10")
def test_repeated_requests_are_judged_each_on_its_own(server):
    """The same header with other bytes, to other models, after good and bad ones: nothing sticks."""
    document = {"inputs": [binary(8, "IN", shape=[2])], "parameters": {"binary_data_output": True}}
    for round_number in range(20):
        blob = struct.pack("<2f", round_number, -round_number)
        body, headers = binary_body(document, blob)
        good = server.infer("identity", body, headers)
        assert good.body.endswith(blob)
        assert server.infer(f"versions/versions/{1 + 2 * (round_number % 2)}", body, headers).body.endswith(blob)
        assert "unexpected additional input" in server.infer("identity", body + b"x", headers).error
        assert "expecting 1 additional" in server.infer("identity", body[:-1], headers).error
        assert "Expected [-1,-1], got [2]" in server.infer("raw_plane", body, headers).error
        assert "expects 'INT64'" in server.infer("generator", body, headers).error
        assert server.infer("identity", body[:-8]).error.startswith("must specify valid 'Infer-Header-Content-Length'")
