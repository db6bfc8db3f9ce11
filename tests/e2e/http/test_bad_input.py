"""The catalogue of bad infer requests, each sent in every way in which a body can arrive: status and text word for
word."""

import json
import struct

import pytest

from tests.support.connection import binary_body, post, post_chunked

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
NO_SIZE = {"shared_memory_region": "r"}


def tensor(name="INPUT0", **changes):
    item = {"name": name, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} | changes
    return {key: value for key, value in item.items() if value is not ABSENT}


def binary(size, name="INPUT0", **changes):
    return tensor(name, data=ABSENT, parameters={"binary_data_size": size}, **changes)


def request(*inputs, **members):
    return {"inputs": list(inputs) or [tensor("INPUT0"), tensor("INPUT1")]} | members


def to_output(parameters):
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

MALFORMED = [
    (b"nonsense", 500, "Invalid value. at 1"),
    (b"x", 500, "Invalid value. at 0"),
    (b'{"inputs" []}', 500, "Missing a colon after a name of object member. at 10"),
    (b'{"inputs": [] "id": ""}', 500, "Missing a comma or } after an object member. at 14"),
    (b'{"inputs": [1 2]}', 500, "Missing a comma or ] after an array element. at 14"),
    (b'{"inputs": []} x', 500, "The document root must not be followed by other values. at 15"),
    (b"{inputs: []}", 500, "Missing a name for object member. at 1"),
    (b'{"id": "\\x"}', 500, "Invalid escape character in string. at 8"),
    (b'{"id": ' + b"9" * 5000, 500, "Invalid integer value at 7"),
    (b'{"id": 1e999}', 500, "Number too big to be stored in double. at 7"),
    (b'{"id": "\\ud800"}', 400, "The surrogate pair in string is invalid. at 8"),
    (b'{"inputs": [{"data": ["\\udc00"]}]}', 400, "The surrogate pair in string is invalid. at 23"),
    (b'{"parameters": {"k": "\\ud800\\u0041"}}', 400, "The surrogate pair in string is invalid. at 22"),
    (b'{"id": "\xff"}', 400, "Invalid encoding in string. at 8"),
    (b'{"id": "\xed\xa0\x80"}', 400, "Invalid encoding in string. at 8"),
    (b"[" * 100_000, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    (b'{"x": ' + b"[" * 100_000, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
]


@pytest.mark.spec("srv-H10", "srv-H11")
@pytest.mark.parametrize(("text", "status", "reason"), MALFORMED)
def test_malformed_json(send, text, status, reason):
    reply = send(text)
    assert reply.status == status
    assert reply.error.startswith(f"failed to parse the request JSON buffer: {reason}")


FORM = b'--B\r\nContent-Disposition: form-data; name="P"; filename="g.jpg"\r\n\r\n\xff\xd8\xff\xe0\r\n--B--\r\n'


@pytest.mark.parametrize("body", [b"\xff\xd8\xff\xe0\x00\x10JFIF", FORM])
def test_a_file_that_is_sent_as_json_is_told_of_the_ways_for_files(send, body):
    reply = send(body)
    assert reply.status == 400
    assert "to `generate` with `curl -F NAME=@FILE`" in reply.error
    assert "`Inference-Header-Content-Length: 0`" in reply.error


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


JSON_ROWS = {
    "no object": ([], 500, access("inputs", "non-object as object")),
    "inputs missing": ({}, 500, missing("inputs")),
    "inputs no array": ({"inputs": {}}, 500, access("inputs", "non-array as array")),
    "inputs null": ({"inputs": None}, 500, access("inputs", "non-array as array")),
    "input no object": (request("INPUT0"), 500, access("inputs", "non-object as object")),
    "no name": (request(tensor(name=ABSENT)), 500, missing("name")),
    "name no string": (request(tensor(name=1)), 500, access("name", "non-string as string")),
    "no datatype": (request(tensor(datatype=ABSENT)), 500, missing("datatype")),
    "datatype no string": (request(tensor(datatype=32)), 500, access("datatype", "non-string as string")),
    "no shape": (request(tensor(shape=ABSENT)), 500, missing("shape")),
    "shape no array": (request(tensor(shape=4)), 500, access("shape", "non-array as array")),
    **{
        f"shape {dim!r}": (
            request(tensor(shape=[dim])),
            500,
            access("shape", "non-unsigned-integer as unsigned-integer"),
        )
        for dim in (-1, -4, 4.0, "4", True, None, 2**64)
    },
    "no data": (request(tensor(data=ABSENT)), 400, SOURCES + "no field is set"),
    "no data, other parameters": (request(tensor(data=ABSENT, parameters={"x": 1})), 400, SOURCES + "no field is set"),
    "data and binary": (
        request(tensor(parameters={"binary_data_size": 16})),
        400,
        SOURCES + "set 'data' 'binary_data_size'",
    ),
    "data and region": (
        request(tensor(parameters={"shared_memory_region": "r"})),
        400,
        SOURCES + "set 'data' 'shared_memory_region'",
    ),
    "binary and region": (
        request(tensor(data=ABSENT, parameters={"shared_memory_region": "r", "binary_data_size": 16})),
        400,
        SOURCES + "set 'binary_data_size' 'shared_memory_region'",
    ),
    "all three": (
        request(tensor(parameters={"shared_memory_region": "r", "binary_data_size": 16})),
        400,
        SOURCES + "set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    "input parameters no object": (request(tensor(parameters=[])), 500, access("parameters", "non-object as object")),
    "unregistered region": (
        request(tensor(data=ABSENT, parameters={**NO_SIZE, "shared_memory_byte_size": 16}), tensor("INPUT1")),
        404,
        "Unable to find shared memory region: 'r'",
    ),
    "region no string": (
        request(tensor(data=ABSENT, parameters={"shared_memory_region": 1})),
        500,
        access("shared_memory_region", "non-string as string"),
    ),
    **{
        f"datatype {name}": (request(tensor(datatype=name)), 400, "invalid datatype for input INPUT0")
        for name in ("FP31", "", "fp32", "TYPE_FP32")
    },
    "binary without header": (
        request(tensor(data=ABSENT, parameters={"binary_data_size": 16})),
        400,
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs "
        "in binary data format",
    ),
    **{
        f"binary_data_size {size!r}": (
            request(tensor(data=ABSENT, parameters={"binary_data_size": size})),
            500,
            access("binary_data_size", "non-unsigned-integer as unsigned-integer"),
        )
        for size in ("16", -1, 16.0, True)
    },
    "data no array": (request(tensor(data=1.0)), 500, access("data", "non-array as array")),
    "data null": (request(tensor(data=None)), 400, SOURCES + "no field is set"),
    "binary_data_size null": (
        request(tensor(data=ABSENT, parameters={"binary_data_size": None})),
        400,
        SOURCES + "no field is set",
    ),
    "data ragged nesting": (request(tensor(data=[[1.0], 2.0])), 500, access("data", "non-array as array")),
    "data array among numbers": (request(tensor(data=[1.0, [2.0]])), 500, access("data", "non-number as double")),
    "too many elements": (
        request(tensor(data=[1.0] * 5)),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "too many strings": (
        request(tensor(datatype="BYTES", data=["a"] * 5)),
        500,
        "Unable to parse 'data': shape does not match true shape of 'data' field",
    ),
    "too many for nothing": (
        request(tensor(shape=[0], data=[1.0])),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    **{
        f"too few {datatype}": (
            request(tensor(datatype=datatype, data=data)),
            500,
            "Failed to parse 'data' field: shape does not match true shape",
        )
        for datatype, data in (("FP32", [1.0] * 3), ("FP32", [[]]), ("BYTES", ["a"] * 3), ("INT8", []))
    },
    **{
        f"{datatype} {value!r}": (
            request(tensor(datatype=datatype, shape=[2], data=[good, value])),
            500,
            access("data", wanted),
        )
        for datatype, good, wrong, wanted in (
            ("BOOL", True, (0, 1, "true", None), "non-boolean as boolean"),
            ("INT8", -1, (1.0, "1", True, None, 2**63), "non-signed-integer as signed-integer"),
            ("INT64", -1, (1.0, 2**63, -(2**63) - 1), "non-signed-integer as signed-integer"),
            ("UINT8", 1, (-1, 1.0, "1", True, None), "non-unsigned-integer as unsigned-integer"),
            ("UINT64", 1, (-1, 1.0, 2**64), "non-unsigned-integer as unsigned-integer"),
            ("FP32", 1, ("1", True, None, {}), "non-number as double"),
            ("FP64", 1.5, ("1", False), "non-number as double"),
            ("FP16", 1.5, ("1", False), "non-number as double"),
            ("BF16", 1.5, ("1", False), "non-number as double"),
        )
        for value in wrong
    },
    **{
        f"BYTES {value!r}": (
            request(tensor(datatype="BYTES", shape=[2], data=["a", value])),
            500,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        )
        for value in (1, True, None, ["b"], {})
    },
    "double too big": (
        request(tensor(shape=[1], data=[10**400])),
        500,
        "Unable to parse 'data': Number too big to be stored in double.",
    ),
    "element count overflow": (
        request(tensor(shape=[2**32, 2**31])),
        400,
        "invalid shape for input 'INPUT0': shape [4294967296,2147483648] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "one dimension overflow": (
        request(tensor(shape=[2**63, 0], data=[])),
        400,
        "invalid shape for input 'INPUT0': shape [9223372036854775808,0] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "byte size overflow": (
        request(tensor(shape=[2**61])),
        400,
        "byte size overflow for input 'INPUT0': element count (2305843009213693952) * data type size (4) exceeds "
        "maximum allowed size (9223372036854775807)",
    ),
    "a huge shape is not allocated": (
        request(tensor(shape=[2**40])),
        400,
        "JSON input 'INPUT0' has a byte_size (4398046511104 bytes) that exceeds the maximum allowed value of 67108864 "
        "bytes. Use --http-max-input-size to increase the limit.",
    ),
    "id": (request(id=3), 500, access("id", "non-string as string")),
    "parameters no object": (request(parameters=[]), 500, access("parameters", "non-object as object")),
    **{
        f"{name} {value!r}": (request(parameters={name: value}), 500, access(name, wanted))
        for name, values, wanted in (
            ("sequence_id", (-1, 1.5, True, [], 2**64), "non-string as string"),
            ("sequence_start", (1, "true"), "non-boolean as boolean"),
            ("sequence_end", (0, "true", []), "non-boolean as boolean"),
            ("priority", (-1, "1", 1.0, True, 2**64), "non-unsigned-integer as unsigned-integer"),
            ("timeout", (-1, "1", 1.5, {}), "non-unsigned-integer as unsigned-integer"),
            ("binary_data_output", (1, "true"), "non-boolean as boolean"),
        )
        for value in values
    },
    "triton_ parameter": (
        request(parameters={"triton_x": 1}),
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    **{
        f"custom parameter {value!r}": (
            request(parameters={"k": value}),
            400,
            "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'.",
        )
        for value in ([], {}, None, 2**63)
    },
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
    "outputs no array": (request(outputs={}), 500, access("outputs", "non-array as array")),
    "output without name": (request(outputs=[{}]), 500, missing("name")),
    "output no object": (request(outputs=["OUTPUT0"]), 500, access("name", "non-object as object")),
    "output parameters no object": (
        request(outputs=[{"name": "OUTPUT0", "parameters": []}]),
        500,
        access("parameters", "non-object as object"),
    ),
    "binary_data no bool": (to_output({"binary_data": 1}), 500, access("binary_data", "non-boolean as boolean")),
    "output region and classification": (
        to_output({"shared_memory_region": "r", "classification": 2}),
        400,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    "output region and binary": (
        to_output({"shared_memory_region": "r", "binary_data": True}),
        400,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
    "output to an unregistered region": (
        to_output({"shared_memory_region": "r", "shared_memory_byte_size": 16, "binary_data": False}),
        404,
        "Unable to find shared memory region: 'r'",
    ),
    "bad classification": (
        to_output({"classification": -1}),
        500,
        access("classification", "non-unsigned-integer as unsigned-integer"),
    ),
    "classification of no integer": (
        to_output({"classification": 1.5}),
        500,
        access("classification", "non-unsigned-integer as unsigned-integer"),
    ),
    "unknown output": (
        request(outputs=[{"name": "OUTPUT9"}]),
        400,
        "unexpected inference output 'OUTPUT9' for model 'add_sub'",
    ),
    "unknown input": (
        request(tensor("INPUT0"), tensor("INPUT9")),
        400,
        "unexpected inference input 'INPUT9' for model 'add_sub'",
    ),
    "no inputs": (
        {"inputs": []},
        400,
        RID + "expected 2 inputs but got 0 inputs for model 'add_sub'. Got input(s) [], but missing required input(s) "
        "['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    "one input of two": (
        request(tensor(), id="x y"),
        400,
        "[request id: x y] expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "datatype mismatch": (
        request(tensor(datatype="INT32", data=[1, 2, 3, 4]), tensor("INPUT1")),
        400,
        RID + "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
    ),
    "shape mismatch": (
        request(tensor(shape=[2, 2]), tensor("INPUT1")),
        400,
        RID + "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [2,2]. ",
    ),
}


@pytest.mark.spec("srv-H10", "srv-H11")
@pytest.mark.parametrize(("document", "status", "message"), JSON_ROWS.values(), ids=JSON_ROWS)
def test_json(send, document, status, message):
    reply = send(document)
    assert (reply.status, reply.error[: len(message)]) == (status, message)


@pytest.mark.one_process  # front ends do not know the regions: the missing size is the first mistake that they see
@pytest.mark.parametrize("document", [request(tensor(data=ABSENT, parameters=NO_SIZE)), to_output(NO_SIZE)])
def test_an_unknown_region_without_a_size(send, document):
    """The region is the first mistake."""
    assert send(document).error == "Unable to find shared memory region: 'r'"


MISSPELT = [
    ({"input": []}, "non-existing object member 'inputs'. There is a member 'input': write 'inputs'"),
    (
        {"id": "1"},
        """non-existing object member 'inputs'. Add "inputs": [{"name": "IN", "datatype": "FP32", "shape": """,
    ),
    (request(tensor(datatype=ABSENT, dataype="FP32")), "There is a member 'dataype': write 'datatype'"),
    (request(tensor(datatype=ABSENT, data_type="FP32")), "There is a member 'data_type': write 'datatype'"),
    (request(tensor(datatype=ABSENT, dtype="FP32")), "There is a member 'dtype': write 'datatype'"),
    (request(tensor(datatype=ABSENT)), """object member 'datatype'. Add "datatype": "FP32\""""),
    (request(tensor(shape=ABSENT, Shape=[4])), "There is a member 'Shape': write 'shape'"),
    (request(tensor(shape=ABSENT)), """object member 'shape'. Add "shape": [1, 2]"""),
    (request(tensor(data=ABSENT, Data=[1])), SOURCES + "no field is set. There is a member 'Data': write 'data'"),
    (request(tensor(data=ABSENT)), SOURCES + """no field is set. Add the elements, as in "data": [1, 2]"""),
    (request(outputs=[{"nam": "OUTPUT0"}]), "There is a member 'nam': write 'name'"),
]


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize(("document", "message"), MISSPELT)
def test_the_name_that_a_misspelt_member_should_have(server, document, message):
    assert message in server.infer("add_sub", document).error


ADVICE = [
    b"{'inputs': []}",
    b'{"inputs": [],}',
    b'{"inputs": [{"name": "INPUT0", "shape": [4, ]}]}',
    b"inputs=1",
    b'{"inputs": []}abcd',
    [1],
    {"inputs": {"INPUT0": [1]}},
    request(tensor(data=["1", "2", "3", "4"])),
    request(tensor(shape="4")),
    request(tensor(), tensor("INPUT1", datatype="BYTES", data=[1] * 4)),
    request(tensor(), tensor("INPUT1", data=[1, 2, 3, "4"]), parameters={"long": "x" * 300_000}),
    request(tensor(shape=[-1])),
    request(parameters={"timeout": "5"}),
    request(parameters={"sequence_id": 1, "sequence_start": "true"}),
    request(id=5),
    request(tensor(datatype="float32")),
    request(tensor(datatype="TYPE_FP32")),
    request(tensor(datatype="TYPE_STRING")),
    request(tensor(data=[1, 2, 3])),
    request(tensor(data=[1, 2, 3, 4, 5])),
    request(tensor(), tensor("INPUT2")),
    request(outputs=[{"name": "O"}]),
    request(tensor(), tensor("INPUT1"), tensor("X")),
]


@pytest.mark.spec("srv-H10", "srv-H11")
@pytest.mark.parametrize("document", ADVICE, ids=lambda document: str(document)[:120])
def test_a_refusal_says_what_to_write(server, document, snapshot):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    assert server.infer("add_sub", body).error == snapshot


@pytest.mark.spec("srv-H10")
def test_a_request_of_many_long_names_is_refused_at_once(server):
    assert "Unable to parse 'inputs'" in server.infer("add_sub", {f"{n:06}" * 100: 1 for n in range(1500)}).error


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
        ("1_0", "Unable to parse Inference-Header-Content-Length, got: 1_0"),
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
    advice = ". Its value is the number of bytes of the JSON that precedes the binary tensors, such as 150; leave the "
    assert reply.error.startswith(message.replace("SIZE", str(size)) + advice)


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize("form", ["{}", " {} ", "+{}", "00{}"])
def test_header_length_in_other_forms(server, form):
    headers = {"Inference-Header-Content-Length": form.format(len(GOOD))}
    assert server.infer("identity", GOOD, headers).status == 200


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
    "too small for the shape": (
        request(tensor(), binary(0, "INPUT1")),
        0,
        RID + "input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 16, got 0",
    ),
    "huge shape": (
        request(binary(16, shape=[2**63]), binary(16, "INPUT1")),
        32,
        "invalid shape for input 'INPUT0': shape [9223372036854775808] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "large but countable shape": (
        request(binary(16, shape=[2**60]), binary(16, "INPUT1")),
        32,
        RID + "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [1152921504606846976]. ",
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
    "none": (b"", "expected 16 string elements for inference input 'IN' for model 'strings', got 0"),
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
    # Each document has two faults; the one that comes first in the order of checks is told.
    ({"id": 1, "parameters": 1}, "Unable to parse 'id'"),
    ({"parameters": {"timeout": "x"}, "inputs": 1}, "Unable to parse 'timeout'"),
    ({"parameters": {"priority": "x", "timeout": "x"}}, "Unable to parse 'priority'"),
    ({"inputs": [tensor(datatype="X")], "outputs": 1}, "invalid datatype"),
    (request(binary(3), tensor("INPUT9"), outputs=[{}]), "Unable to parse 'name'"),
    (request(tensor(), binary(3, "INPUT9"), outputs=[{"name": "OUTPUT9"}]), "unexpected inference output 'OUTPUT9'"),
    (request(binary(4), tensor(name=1)), "unexpected size for input 'INPUT0'"),
    (request(binary(2), outputs=1), "unexpected additional input data"),
    (request(binary(3, shape=[9]), outputs=[{"name": "OUTPUT9"}]), "unexpected inference output 'OUTPUT9'"),
    (request(binary(3), binary(0)), RID + "input 'INPUT0' already exists"),
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


def test_null_is_absent(send):
    """Clients that write all members of a document give null to those that are not set."""
    own = {"parameters": None, "outputs": None, "id": None}
    unset = dict.fromkeys(
        ("binary_data_size", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")
    )
    inputs = [tensor("INPUT0", parameters=None), tensor("INPUT1", parameters=unset)]
    switches = dict.fromkeys(
        ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
    )
    form = dict.fromkeys(("binary_data", "classification", "shared_memory_region"))
    outputs = [{"name": "OUTPUT0", "parameters": form}, {"name": "OUTPUT1", "parameters": None}]
    expected = send(request()).json
    for document in (request(*inputs, **own), request(parameters=switches), request(outputs=outputs)):
        for _ in range(4):  # a document that is sent again and again is read in a shorter way
            assert send(document).json == expected


@pytest.mark.parametrize(
    ("route", "document"),
    [
        ("/v2/models/add_sub/generate", {"INPUT0": [1.0] * 4, "INPUT1": [1.0] * 4, "id": None, "parameters": None}),
        ("/v2/repository/index", {"ready": None}),
    ],
)
def test_null_is_absent_on_other_routes(server, route, document):
    given = {name: value for name, value in document.items() if value is not None}
    reply = server.request("POST", route, document)
    assert (reply.status, reply.body) == (200, server.request("POST", route, given).body)
