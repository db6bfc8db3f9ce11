"""Responses as bytes, read back the way clients do."""

import json
import struct
from math import inf, nan

import msgspec
import pytest
import rapidjson
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend.errors import ErrorCode
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON, OutputFormat
from pybackend.protocol.json.infer_response import encode_response
from pybackend.protocol.json.tensor import encode_values
from pybackend_wire.dtypes import DATATYPES

FOUR = struct.pack("<4f", 0.1, 2, -3.5, 1e20)


def response(*outputs, parameters=None, request_id=""):
    made = InferenceResponse("m", "1", request_id)
    made.outputs, made.parameters = list(outputs), parameters
    return made


def output(name="Y", datatype="FP32", shape=(4,), data=FOUR):
    return OutputTensor(name, datatype, list(shape), data)


def test_json():
    encoded = encode_response(response(output(shape=(2, 2))), ALL_JSON)
    assert encoded.header_json == (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"Y","datatype":"FP32","shape":[2,2],'
        b'"data":[0.10000000149011612,2.0,-3.5,1.0000000200408773e20]}]}'
    )
    assert (encoded.json_length, encoded.chunks, encoded.borrows_memory) == (None, [], False)
    assert encoded.body_bytes == len(encoded.header_json)


def test_binary():
    encoded = encode_response(response(output(), output("Z"), request_id="7"), ALL_BINARY)
    assert encoded.header_json == (
        b'{"id":"7","model_name":"m","model_version":"1","outputs":['
        b'{"name":"Y","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}},'
        b'{"name":"Z","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}'
    )
    assert encoded.json_length == len(encoded.header_json)
    assert encoded.chunks == [FOUR, FOUR]
    assert encoded.body_bytes == len(encoded.header_json) + 32


def test_mixed_forms_keep_the_outputs_order():
    wanted = OutputFormat(binary_default=False, overrides={"Y": True})
    encoded = encode_response(response(output("X"), output("Y"), output("Z")), wanted)
    found = json.loads(encoded.header_json)["outputs"]
    assert [("data" in item, "parameters" in item) for item in found] == [(True, False), (False, True), (True, False)]
    assert encoded.chunks == [FOUR]


def test_empty_binary_outputs_alone_make_a_plain_json_reply():
    encoded = encode_response(response(output(shape=(0,), data=b"")), ALL_BINARY)
    assert json.loads(encoded.header_json)["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert (encoded.json_length, encoded.chunks) == (None, [])


def test_an_empty_and_a_filled_binary_output():
    encoded = encode_response(response(output(shape=(0,), data=memoryview(b"")), output("Z")), ALL_BINARY)
    assert encoded.json_length == len(encoded.header_json)
    assert encoded.chunks == [FOUR]


@pytest.mark.parametrize(("size", "borrowed"), [(16, False), (4096, False), (4100, True)])
def test_only_large_outputs_stay_in_the_responses_memory(size, borrowed):
    memory = bytearray(size)
    encoded = encode_response(response(output(shape=(size // 4,), data=memoryview(memory))), ALL_BINARY)
    assert encoded.borrows_memory is borrowed
    memory[0] = 1
    assert (encoded.chunks[0][0] == 1) is borrowed


def test_private_bytes_are_not_borrowed():
    data = bytes(100_000)
    encoded = encode_response(response(output(shape=(25_000,), data=data)), ALL_BINARY)
    assert encoded.chunks[0] is data
    assert not encoded.borrows_memory


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
@pytest.mark.parametrize("repeat", [1, 50])
def test_nan_and_infinities_are_bare_literals(datatype, repeat):
    values = [1.5, nan, inf, -inf] * repeat
    encoded = encode_response(
        response(output(datatype=datatype, shape=(4 * repeat,), data=encode_values(datatype, values)), request_id="é"),
        ALL_JSON,
    )
    assert b'"data":[1.5,NaN,Infinity,-Infinity' in encoded.header_json
    found = rapidjson.loads(encoded.header_json)
    assert str(found["outputs"][0]["data"]) == str(values)
    assert found["id"] == "é"


def test_strings_that_say_null_or_nan():
    data = encode_values("BYTES", ["null", "NaN"])
    encoded = encode_response(response(output(), output("Z", "BYTES", (2,), data)), ALL_JSON)
    assert json.loads(encoded.header_json)["outputs"][1]["data"] == ["null", "NaN"]


def test_parameters():
    parameters = {"text": "é", "whole": -5, "big": 2**64, "yes": True, "real": 0.5}
    encoded = encode_response(response(output(), parameters=parameters), ALL_BINARY)
    assert json.loads(encoded.header_json)["parameters"] == parameters
    odd = encode_response(response(output(), parameters={"real": -inf, "name": "null"}), ALL_BINARY)
    assert b'"parameters":{"real":-Infinity,"name":"null"}' in odd.header_json
    assert b"parameters" not in encode_response(response(parameters={}), ALL_JSON).header_json


def test_text_that_utf8_cannot_hold():
    encoded = encode_response(response(output(), parameters={"k": "\ud800x"}, request_id="\udcff"), ALL_JSON)
    found = rapidjson.loads(encoded.header_json)
    assert (found["parameters"], found["id"]) == ({"k": "?x"}, "?")


def test_bytes_that_are_no_text(refusal):
    broken = response(output("Y", "BYTES", (1,), b"\1\0\0\0\xff"))
    code, message = refusal(encode_response, broken, ALL_JSON)
    assert code == ErrorCode.INVALID_ARG
    assert "'Y'" in message
    assert "binary" in message
    assert encode_response(broken, ALL_BINARY).chunks == [b"\1\0\0\0\xff"]


def test_broken_bytes_tensor(refusal):
    code, message = refusal(encode_response, response(output("Y", "BYTES", (1,), b"\5\0\0\0")), ALL_JSON)
    assert code == ErrorCode.INTERNAL
    assert "'Y'" in message


def test_no_outputs():
    assert encode_response(response(), ALL_BINARY).header_json == (
        b'{"model_name":"m","model_version":"1","outputs":[]}'
    )


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
@settings(max_examples=40)
def test_a_json_reply_sent_back_is_the_same_tensor(datatype, data, make_signature, infer):
    """Reply and request use one JSON form: what one model answers, another takes, bit for bit."""
    count = data.draw(st.integers(0, 70))
    if datatype == "BYTES":
        wire = encode_values("BYTES", data.draw(st.lists(st.text(), min_size=count, max_size=count)))
    elif datatype == "BOOL":
        wire = bytes(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    else:
        size = count * DATATYPES[datatype].itemsize
        wire = data.draw(st.binary(min_size=size, max_size=size))
    encoded = encode_response(response(output("X", datatype, (count,), wire)), ALL_JSON)
    document = b'{"inputs":%b}' % msgspec_outputs(encoded.header_json)
    plan = infer(document, make_signature(("X", datatype, [-1])))
    back = plan.request.inputs[0].data
    if datatype.startswith("FP") or datatype == "BF16":  # a NaN's payload has no JSON form
        again = encode_response(response(output("X", datatype, (count,), back)), ALL_JSON)
        assert again.header_json == encoded.header_json
    else:
        assert back == wire


def msgspec_outputs(text: bytes) -> bytes:
    """The text of the reply's ``outputs`` member, its last."""
    return text[text.index(b'"outputs":') + len(b'"outputs":') : -1]


def test_replies_are_compact_json():
    encoded = encode_response(response(output(), parameters={"a": 1}, request_id="x"), ALL_JSON)
    assert msgspec.json.encode(msgspec.json.decode(encoded.header_json)) == encoded.header_json
