"""Every kind of bad infer request: its code and its text, word for word."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from pybackend.errors import ErrorCode
from pybackend.protocol.json.infer_request import parse_header_length, parse_infer
from pybackend.protocol.limits import BodyLimits

INTERNAL, INVALID, NOT_FOUND = (
    ErrorCode.INTERNAL,
    ErrorCode.INVALID_ARG,
    ErrorCode.NOT_FOUND,
)
MALFORMED = "failed to parse the request JSON buffer: "
SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
RID = "[request id: <id_unknown>] "
NO_VALUE = object()


def tensor(name: str = "INPUT0", **changes: Any) -> dict[str, Any]:
    item = {"name": name, "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]} | changes
    return {key: value for key, value in item.items() if value is not NO_VALUE}


def request(*inputs: Any, **members: Any) -> dict[str, Any]:
    return {"inputs": list(inputs) or [tensor("INPUT0"), tensor("INPUT1")]} | members


def nested(depth: int, value: str) -> bytes:
    data = "[" * depth + value + "]" * depth
    return b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":%b}]}' % data.encode()


MALFORMED_JSON = [
    (b"", INTERNAL, "The document is empty. at 0"),
    (b"   ", INTERNAL, "The document is empty. at 3"),
    (b"nonsense", INTERNAL, "Invalid value. at 1"),
    (b"x", INTERNAL, "Invalid value. at 0"),
    (b'{"inputs" []}', INTERNAL, "Missing a colon after a name of object member. at 10"),
    (b'{"inputs": [] "id": ""}', INTERNAL, "Missing a comma or } after an object member. at 14"),
    (b'{"inputs": [1 2]}', INTERNAL, "Missing a comma or ] after an array element. at 14"),
    (b'{"inputs": []} x', INTERNAL, "The document root must not be followed by other values. at 15"),
    (b"{inputs: []}", INTERNAL, "Missing a name for object member. at 1"),
    (b'{"id": "abc', INTERNAL, "Missing a closing quotation mark in string. at 11"),
    (b'{"id": "\\x"}', INTERNAL, "Invalid escape character in string. at 8"),
    (b'{"id": ' + b"9" * 5000, INTERNAL, "Invalid integer value at 7"),
    (b'{"id": 1e999}', INTERNAL, "Number too big to be stored in double. at 7"),
    (b'{"id": "\\ud800"}', INVALID, "The surrogate pair in string is invalid. at 8"),
    (b'{"inputs": [{"data": ["\\udc00"]}]}', INVALID, "The surrogate pair in string is invalid. at 23"),
    (b'{"parameters": {"k": "\\ud800\\u0041"}}', INVALID, "The surrogate pair in string is invalid. at 22"),
    (b'{"id": "\xff"}', INVALID, "Invalid encoding in string. at 8"),
    (b'{"id": "\xed\xa0\x80"}', INVALID, "Invalid encoding in string. at 8"),
    (b"[" * 100_000, INVALID, "JSON nesting depth exceeds maximum allowed limit (100)"),
    (b'{"x": ' + b"[" * 100_000, INVALID, "JSON nesting depth exceeds maximum allowed limit (100)"),
]


@pytest.mark.parametrize(("text", "code", "message"), MALFORMED_JSON)
def test_malformed_json(text, code, message, add_sub, infer, refusal):
    found_code, found = refusal(infer, text, add_sub)
    assert found.startswith(MALFORMED + message)
    assert found_code == code


JSON_ROWS = {
    "no object": ([], INTERNAL, "Unable to parse 'inputs': attempt to access JSON non-object as object"),
    "inputs missing": (
        {},
        INTERNAL,
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
    ),
    "inputs no array": (
        {"inputs": {}},
        INTERNAL,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    "inputs null": ({"inputs": None}, INTERNAL, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    "input no object": (
        request("INPUT0"),
        INTERNAL,
        "Unable to parse 'inputs': attempt to access JSON non-object as object",
    ),
    "no name": (
        request(tensor(name=NO_VALUE)),
        INTERNAL,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    "name no string": (
        request(tensor(name=1)),
        INTERNAL,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    "no datatype": (
        request(tensor(datatype=NO_VALUE)),
        INTERNAL,
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    "datatype no string": (
        request(tensor(datatype=32)),
        INTERNAL,
        "Unable to parse 'datatype': attempt to access JSON non-string as string",
    ),
    "no shape": (
        request(tensor(shape=NO_VALUE)),
        INTERNAL,
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    "shape no array": (
        request(tensor(shape=4)),
        INTERNAL,
        "Unable to parse 'shape': attempt to access JSON non-array as array",
    ),
    **{
        f"shape {dim!r}": (
            request(tensor(shape=[dim])),
            INTERNAL,
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        )
        for dim in (-1, -4, 4.0, "4", True, None, 2**64)
    },
    "no data": (request(tensor(data=NO_VALUE)), INVALID, SOURCES + "no field is set"),
    "no data, other parameters": (
        request(tensor(data=NO_VALUE, parameters={"x": 1})),
        INVALID,
        SOURCES + "no field is set",
    ),
    "data and binary": (
        request(tensor(parameters={"binary_data_size": 16})),
        INVALID,
        SOURCES + "set 'data' 'binary_data_size'",
    ),
    "data and region": (
        request(tensor(parameters={"shared_memory_region": "r"})),
        INVALID,
        SOURCES + "set 'data' 'shared_memory_region'",
    ),
    "binary and region": (
        request(tensor(data=NO_VALUE, parameters={"shared_memory_region": "r", "binary_data_size": 16})),
        INVALID,
        SOURCES + "set 'binary_data_size' 'shared_memory_region'",
    ),
    "all three": (
        request(tensor(parameters={"shared_memory_region": "r", "binary_data_size": 16})),
        INVALID,
        SOURCES + "set 'data' 'binary_data_size' 'shared_memory_region'",
    ),
    "input parameters no object": (
        request(tensor(parameters=[])),
        INTERNAL,
        "Unable to parse 'parameters': attempt to access JSON non-object as object",
    ),
    "unregistered region": (
        request(tensor(data=NO_VALUE, parameters={"shared_memory_region": "r"})),
        NOT_FOUND,
        "Unable to find shared memory region: 'r'",
    ),
    "region no string": (
        request(tensor(data=NO_VALUE, parameters={"shared_memory_region": 1})),
        INTERNAL,
        "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
    ),
    **{
        f"datatype {name}": (request(tensor(datatype=name)), INVALID, "invalid datatype for input INPUT0")
        for name in ("FP31", "", "fp32", "TYPE_FP32")
    },
    "binary without header": (
        request(tensor(data=NO_VALUE, parameters={"binary_data_size": 16})),
        INVALID,
        "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' when passing inputs "
        "in binary data format",
    ),
    **{
        f"binary_data_size {size!r}": (
            request(tensor(data=NO_VALUE, parameters={"binary_data_size": size})),
            INTERNAL,
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
        )
        for size in ("16", -1, 16.0, True, None)
    },
    "data no array": (
        request(tensor(data=1.0)),
        INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    "data null": (
        request(tensor(data=None)),
        INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    "data ragged nesting": (
        request(tensor(data=[[1.0], 2.0])),
        INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    "data array among numbers": (
        request(tensor(data=[1.0, [2.0]])),
        INTERNAL,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    "too many elements": (
        request(tensor(data=[1.0] * 5)),
        INTERNAL,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "too many strings": (
        request(tensor(datatype="BYTES", data=["a"] * 5)),
        INTERNAL,
        "Unable to parse 'data': shape does not match true shape of 'data' field",
    ),
    "too many for nothing": (
        request(tensor(shape=[0], data=[1.0])),
        INTERNAL,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    **{
        f"too few {datatype}": (
            request(tensor(datatype=datatype, data=data)),
            INTERNAL,
            "Failed to parse 'data' field: shape does not match true shape",
        )
        for datatype, data in (("FP32", [1.0] * 3), ("FP32", [[]]), ("BYTES", ["a"] * 3), ("INT8", []))
    },
    **{
        f"{datatype} {value!r}": (
            request(tensor(datatype=datatype, shape=[2], data=[good, value])),
            INTERNAL,
            f"Unable to parse 'data': attempt to access JSON {wanted}",
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
            INTERNAL,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        )
        for value in (1, True, None, ["b"], {})
    },
    "double too big": (
        request(tensor(shape=[1], data=[10**400])),
        INTERNAL,
        "Unable to parse 'data': Number too big to be stored in double.",
    ),
    "element count overflow": (
        request(tensor(shape=[2**32, 2**31])),
        INVALID,
        "invalid shape for input 'INPUT0': shape [4294967296,2147483648] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "one dimension overflow": (
        request(tensor(shape=[2**63, 0], data=[])),
        INVALID,
        "invalid shape for input 'INPUT0': shape [9223372036854775808,0] causes total element count to exceed maximum "
        "size of 9223372036854775807",
    ),
    "byte size overflow": (
        request(tensor(shape=[2**61])),
        INVALID,
        "byte size overflow for input 'INPUT0': element count (2305843009213693952) * data type size (4) exceeds "
        "maximum allowed size (9223372036854775807)",
    ),
    "a huge shape is not allocated": (
        request(tensor(shape=[2**40])),
        INVALID,
        "JSON input 'INPUT0' has a byte_size (4398046511104 bytes) that exceeds the maximum allowed value of 67108864 "
        "bytes. Use --http-max-input-size to increase the limit.",
    ),
    "id": (request(id=3), INTERNAL, "Unable to parse 'id': attempt to access JSON non-string as string"),
    "id null": (request(id=None), INTERNAL, "Unable to parse 'id': attempt to access JSON non-string as string"),
    "parameters no object": (
        request(parameters=[]),
        INTERNAL,
        "Unable to parse 'parameters': attempt to access JSON non-object as object",
    ),
    **{
        f"{name} {value!r}": (
            request(parameters={name: value}),
            INTERNAL,
            f"Unable to parse '{name}': attempt to access JSON {wanted}",
        )
        for name, values, wanted in (
            ("sequence_id", (-1, 1.5, True, None, [], 2**64), "non-string as string"),
            ("sequence_start", (1, "true", None), "non-boolean as boolean"),
            ("sequence_end", (0, "true", []), "non-boolean as boolean"),
            ("priority", (-1, "1", 1.0, True, 2**64), "non-unsigned-integer as unsigned-integer"),
            ("timeout", (-1, "1", 1.5, {}), "non-unsigned-integer as unsigned-integer"),
            ("binary_data_output", (1, "true", None), "non-boolean as boolean"),
        )
        for value in values
    },
    "triton_ parameter": (
        request(parameters={"triton_x": 1}),
        INVALID,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    **{
        f"custom parameter {value!r}": (
            request(parameters={"k": value}),
            INVALID,
            "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'.",
        )
        for value in ([], {}, None, 2**63)
    },
    "duplicate input": (
        request(tensor(), tensor(), id="7"),
        INVALID,
        "[request id: 7] input 'INPUT0' already exists in request",
    ),
    "duplicate output": (
        request(outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]),
        INVALID,
        RID + "output 'OUTPUT0' already exists in request",
    ),
    "outputs no array": (
        request(outputs={}),
        INTERNAL,
        "Unable to parse 'outputs': attempt to access JSON non-array as array",
    ),
    "output without name": (
        request(outputs=[{}]),
        INTERNAL,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    "output no object": (
        request(outputs=["OUTPUT0"]),
        INTERNAL,
        "Unable to parse 'name': attempt to access JSON non-object as object",
    ),
    "output parameters no object": (
        request(outputs=[{"name": "OUTPUT0", "parameters": None}]),
        INTERNAL,
        "Unable to parse 'parameters': attempt to access JSON non-object as object",
    ),
    "binary_data no bool": (
        request(outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]),
        INTERNAL,
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    "output region and classification": (
        request(outputs=[{"name": "OUTPUT0", "parameters": {"shared_memory_region": "r", "classification": 2}}]),
        INVALID,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    "output region and binary": (
        request(outputs=[{"name": "OUTPUT0", "parameters": {"shared_memory_region": "r", "binary_data": True}}]),
        INVALID,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
    "output to an unregistered region": (
        request(outputs=[{"name": "OUTPUT0", "parameters": {"shared_memory_region": "r", "binary_data": False}}]),
        NOT_FOUND,
        "Unable to find shared memory region: 'r'",
    ),
    "bad classification": (
        request(outputs=[{"name": "OUTPUT0", "parameters": {"classification": -1}}]),
        INTERNAL,
        "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    "classification of no integer": (
        request(outputs=[{"name": "OUTPUT0", "parameters": {"classification": 1.5}}]),
        INTERNAL,
        "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    "unknown output": (
        request(outputs=[{"name": "OUTPUT9"}]),
        INVALID,
        "unexpected inference output 'OUTPUT9' for model 'add_sub'",
    ),
    "unknown input": (
        request(tensor("INPUT0"), tensor("INPUT9")),
        INVALID,
        "unexpected inference input 'INPUT9' for model 'add_sub'",
    ),
    "no inputs": (
        {"inputs": []},
        INVALID,
        RID + "expected 2 inputs but got 0 inputs for model 'add_sub'. Got input(s) [], but missing required input(s) "
        "['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    "one input of two": (
        request(tensor(), id="x y"),
        INVALID,
        "[request id: x y] expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "datatype mismatch": (
        request(tensor(datatype="INT32", data=[1, 2, 3, 4]), tensor("INPUT1")),
        INVALID,
        RID + "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
    ),
    "shape mismatch": (
        request(tensor(shape=[2, 2]), tensor("INPUT1")),
        INVALID,
        RID + "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [2,2]. ",
    ),
}


@pytest.mark.parametrize(("document", "code", "message"), JSON_ROWS.values(), ids=JSON_ROWS)
@pytest.mark.parametrize("size_known", [True, False])
def test_json_request(document, code, message, size_known, add_sub, infer, refusal):
    found_code, found = refusal(infer, document, add_sub, size_known=size_known)
    assert found.startswith(message)
    assert found_code == code


@pytest.mark.parametrize("depth", [100, 101, 500])
def test_nesting_too_deep(depth, add_sub, infer, refusal):
    expected = (INVALID, "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)")
    assert refusal(infer, nested(depth, "1"), add_sub) == expected


def binary(size: Any, name: str = "INPUT0", **changes: Any) -> dict[str, Any]:
    return tensor(name, data=NO_VALUE, parameters={"binary_data_size": size}, **changes)


TWO = request(binary(16), binary(16, "INPUT1"))
BINARY_ROWS = {
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
    "leftover": (TWO, 33, "unexpected additional input data for model 'add_sub'"),
    "leftover after JSON": (request(), 1, "unexpected additional input data for model 'add_sub'"),
    "size too large for the shape": (
        request(binary(20), binary(16, "INPUT1")),
        36,
        RID + "input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 16, got 20",
    ),
    "size too small for the shape": (
        request(tensor(), binary(0, "INPUT1")),
        0,
        RID + "input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 16, got 0",
    ),
    "an announced size is not allocated": (
        request(binary(2**62), binary(16, "INPUT1")),
        16,
        f"unexpected size for input 'INPUT0', expecting {2**62 - 16} additional bytes for model 'add_sub'",
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


@pytest.mark.parametrize(("document", "blob_bytes", "message"), BINARY_ROWS.values(), ids=BINARY_ROWS)
@pytest.mark.parametrize("size_known", [True, False])
def test_binary_request(document, blob_bytes, message, size_known, add_sub, infer, refusal):
    code, found = refusal(infer, document, add_sub, bytes(blob_bytes), size_known=size_known)
    assert found.startswith(message)
    assert code == INVALID


def strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


BYTES_ROWS = {
    "too many": (
        strings(*[b"x"] * 17),
        "unexpected number of string elements 17 for inference input 'X' for model 'm', expecting 16",
    ),
    "too few": (strings(*[b"x"] * 14), "expected 16 string elements for inference input 'X' for model 'm', got 14"),
    "none": (b"", "expected 16 string elements for inference input 'X' for model 'm', got 0"),
    "broken length": (
        strings(b"x", b"yy") + b"\1\0",
        "incomplete string length indicator for inference input 'X' for model 'm', expecting 4 bytes but only 2 bytes "
        "available. Please make sure the string length indicator is in one buffer.",
    ),
    "broken string": (
        strings(*[b"x"] * 15) + b"\5\0\0\0abc",
        "incomplete string data for inference input 'X' for model 'm', expecting string of length 5 but only 3 bytes "
        "available.",
    ),
    "huge length": (
        b"\xff\xff\xff\xff",
        "incomplete string data for inference input 'X' for model 'm', expecting string of length 4294967295 but only "
        "0 bytes available.",
    ),
}


@pytest.mark.parametrize(("blob", "message"), BYTES_ROWS.values(), ids=BYTES_ROWS)
def test_bytes_tensor(blob, message, make_signature, infer, refusal):
    signature = make_signature(("X", "BYTES", [16]))
    document = request(binary(len(blob), "X", datatype="BYTES", shape=[16]), id="9")
    assert refusal(infer, document, signature, blob) == (INVALID, "[request id: 9] " + message)


BATCH_ROWS = {
    "no shape": (
        request(tensor("X", shape=[], data=[1.0]), tensor("Y", shape=[1, 4])),
        "input 'X' has no shape but model requires batch dimension for 'm'",
    ),
    "batch differs": (
        request(tensor("X", shape=[1, 4]), tensor("Y", shape=[2, 4], data=[1.0] * 8)),
        "input 'Y' batch size does not match other inputs for 'm'",
    ),
    "batch too large": (
        request(tensor("X", shape=[9, 4], data=[1.0] * 36), tensor("Y", shape=[9, 4], data=[1.0] * 36)),
        "inference request batch-size must be <= 8 for 'm'",
    ),
    "shape": (
        request(tensor("X", shape=[1, 3], data=[1.0] * 3), tensor("Y", shape=[1, 4])),
        "unexpected shape for input 'X' for model 'm'. Expected [-1,4], got [1,3]. " + NOTE,
    ),
    "rank": (
        request(tensor("X", shape=[4]), tensor("Y", shape=[4])),
        "unexpected shape for input 'X' for model 'm'. Expected [-1,4], got [4]. " + NOTE,
    ),
    "too few, one optional": (
        request(tensor("X", shape=[1, 4])),
        "expected number of inputs between 2 and 3 but got 1 inputs for model 'm'. Got input(s) ['X'], but missing "
        "required input(s) ['Y']. Please provide all required input(s).",
    ),
    "required missing, optional there": (
        request(tensor("X", shape=[1, 4]), tensor("Z", shape=[1, 4])),
        "expected number of inputs between 2 and 3 but got 2 inputs for model 'm'. Got input(s) ['X','Z'], but missing "
        "required input(s) ['Y']. Please provide all required input(s).",
    ),
    "too many": (
        request(*(tensor(name, shape=[1, 4]) for name in "XYZW")),
        "expected number of inputs between 2 and 3 but got 4 inputs for model 'm'. Got input(s) ['X','Y','Z','W'], but "
        "missing required input(s) []. Please provide all required input(s). The model has no input(s) ['W'].",
    ),
}


@pytest.mark.parametrize(("document", "message"), BATCH_ROWS.values(), ids=BATCH_ROWS)
def test_batching_model(document, message, make_signature, infer, refusal):
    signature = make_signature(("X", "FP32", [4]), ("Y", "FP32", [-1]), ("Z", "FP32", [4], True), max_batch_size=8)
    assert refusal(infer, document, signature) == (INVALID, RID + message)


def test_header_part_shorter_than_announced(add_sub, refusal):
    with_length = {"signature": add_sub, "model_version": "", "limits": BodyLimits()}
    found = refusal(parse_infer, b"{}", header_length=10, **with_length)
    assert found == (INVALID, "unexpected size for request JSON, expecting 8 more bytes")


def test_json_over_the_limit(add_sub, infer, refusal):
    text = json.dumps(request()).encode()
    found = refusal(infer, text, add_sub, limits=BodyLimits(100))
    assert found == (
        INVALID,
        f"request JSON size of {len(text)} bytes exceeds the maximum allowed input size of 100 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )


@pytest.mark.parametrize(("datatype", "value", "size"), [("FP64", 1, 3200), ("BYTES", "", 1600), ("FP32", 1, 1600)])
def test_json_tensor_over_the_limit(datatype, value, size, make_signature, infer, refusal):
    item = tensor("X", datatype=datatype, shape=[400], data=[value] * 400)
    text = json.dumps(request(item), separators=(",", ":")).encode()
    limit = max(len(text), 1500)
    found = refusal(infer, text, make_signature(("X", datatype, [400])), limits=BodyLimits(limit))
    assert found == (
        INVALID,
        f"JSON input 'X' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
        "Use --http-max-input-size to increase the limit.",
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"1_0", "Unable to parse Inference-Header-Content-Length, got: 1_0"),
        (b"1.5", "Unable to parse Inference-Header-Content-Length, got: 1.5"),
        (b"\xb2", "Unable to parse Inference-Header-Content-Length, got: \xb2"),
        (
            b"2147483648",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            "2147483648",
        ),
        (
            b"9" * 5000,
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            + "9" * 5000,
        ),
        (b"-1", "inference header size should be in range (0, 100), got: -1"),
        (b"101", "inference header size should be in range (0, 100), got: 101"),
    ],
)
def test_header_length(value, message, refusal):
    advice = ". Its value is the number of bytes of the JSON that precedes the binary tensors, such as 150; leave the "
    code, found = refusal(parse_header_length, value, 100)
    assert code == INVALID
    assert found.startswith(message + advice)


MISSPELT = [
    ({"input": []}, "non-existing object member 'inputs'. There is a member 'input': write 'inputs'"),
    (
        {"id": "1"},
        """non-existing object member 'inputs'. Add "inputs": [{"name": "IN", "datatype": "FP32", "shape": """,
    ),
    (request(tensor(datatype=NO_VALUE, dataype="FP32")), "There is a member 'dataype': write 'datatype'"),
    (request(tensor(datatype=NO_VALUE, data_type="FP32")), "There is a member 'data_type': write 'datatype'"),
    (request(tensor(datatype=NO_VALUE, dtype="FP32")), "There is a member 'dtype': write 'datatype'"),
    (request(tensor(datatype=NO_VALUE)), """object member 'datatype'. Add "datatype": "FP32\""""),
    (request(tensor(shape=NO_VALUE, Shape=[4])), "There is a member 'Shape': write 'shape'"),
    (request(tensor(shape=NO_VALUE)), """object member 'shape'. Add "shape": [1, 2]"""),
    (request(tensor(data=NO_VALUE, Data=[1])), SOURCES + "no field is set. There is a member 'Data': write 'data'"),
    (request(tensor(data=NO_VALUE)), SOURCES + """no field is set. Add the elements, as in "data": [1, 2]"""),
    (request(outputs=[{"nam": "OUTPUT0"}]), "There is a member 'nam': write 'name'"),
]


@pytest.mark.spec("srv-H10")
@pytest.mark.parametrize(("document", "message"), MISSPELT)
def test_the_name_that_a_misspelt_member_should_have(document, message, add_sub, infer, refusal):
    assert message in refusal(infer, document, add_sub)[1]


ADVICE = [
    (b"{'inputs': []}", "at 1. JSON takes double quotes, not single ones"),
    (b'{"inputs": [],}', "at 14. Remove the comma before the }"),
    (b'{"inputs": [{"name": "INPUT0", "shape": [4, ]}]}', ". Remove the comma before the ]"),
    (b"inputs=1", """. The body must be JSON, such as {"inputs": [{"name": "IN", """),
    (
        b'{"inputs": []}abcd',
        ". Bytes of tensors after the JSON need the header Inference-Header-Content-Length, with",
    ),
    ([1], "non-object as object. Write an object in { }"),
    ({"inputs": {"INPUT0": [1]}}, "non-array as array. Write a list in [ ]"),
    (request(tensor(data=["1", "2", "3", "4"])), "non-number as double. Write numbers without quotes"),
    (request(tensor(shape="4")), "non-array as array. Write a list in [ ]"),
    (request(tensor(shape=[-1])), "Write whole numbers of at least 0, without fraction or quotes"),
    (request(parameters={"timeout": "5"}), "Write whole numbers of at least 0, without fraction or quotes"),
    (request(parameters={"sequence_id": 1, "sequence_start": "true"}), "Write true or false, without quotes"),
    (request(id=5), "non-string as string. Write text in double quotes"),
    (request(tensor(datatype="float32")), "invalid datatype for input INPUT0: did you mean FP32? it must be one of "),
    (request(tensor(datatype="TYPE_FP32")), "did you mean FP32?"),
    (request(tensor(datatype="TYPE_STRING")), "did you mean BYTES?"),
    (request(tensor(data=[1, 2, 3])), "By 'shape' there are 4 elements, and 'data' has fewer"),
    (request(tensor(data=[1, 2, 3, 4, 5])), "By 'shape' there are 4 elements, and 'data' has more"),
    (request(tensor(), tensor("INPUT2")), "input 'INPUT2' for model 'add_sub'. Its inputs are ['INPUT0','INPUT1']"),
    (request(outputs=[{"name": "O"}]), "output 'O' for model 'add_sub'. Its outputs are ['OUTPUT0','OUTPUT1']"),
    (request(tensor(), tensor("INPUT1"), tensor("X")), "The model has no input(s) ['X']."),
]


@pytest.mark.spec("srv-H10", "srv-H11")
@pytest.mark.parametrize(("document", "advice"), ADVICE)
def test_a_refusal_says_what_to_write(document, advice, add_sub, infer, refusal):
    assert advice in refusal(infer, document, add_sub)[1]


def test_a_request_of_many_long_names_is_refused_at_once(add_sub, infer, refusal):
    assert "Unable to parse 'inputs'" in refusal(infer, {f"{n:06}" * 100: 1 for n in range(5000)}, add_sub)[1]


@pytest.mark.parametrize(("value", "length"), [(b"0", 0), (b"100", 100), (b" 7 ", 7), (b"+7", 7), (b"007", 7)])
def test_good_header_length(value, length):
    assert parse_header_length(value, 100) == length


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


@pytest.mark.parametrize(("document", "message"), ORDER)
def test_order_of_checks(document, message, add_sub, infer, refusal):
    assert refusal(infer, document, add_sub, b"abc")[1].startswith(message)
