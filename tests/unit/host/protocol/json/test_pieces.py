"""A large response in pieces says what it would say in one, and no piece is large."""

import numpy as np
import pytest

from pybackend.errors import InferenceError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.protocol.classification import ClassRequest
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON, OutputFormat
from pybackend.protocol.json.infer_response import encode_response
from pybackend.protocol.json.pieces import BYTES_PER_PIECE, LARGEST_WHOLE_BYTES, PiecewiseResponse, is_large
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import DATATYPES

LARGEST_PIECE_BYTES = 2 * BYTES_PER_PIECE
"""Of JSON: with escapes text is longer than its tensor."""

NUMBERS = [name for name, each in DATATYPES.items() if each.itemsize]


def response_of(*tensors, **members):
    response = InferenceResponse("model", "3", members.get("id", ""))
    response.outputs, response.parameters = list(tensors), members.get("parameters")
    return response


def in_pieces(response, output_format):
    body = PiecewiseResponse(response, output_format)
    pieces = list(body.json_pieces())
    assert max(map(len, pieces)) <= LARGEST_PIECE_BYTES
    return body.collected(pieces)


def check(response, output_format=ALL_JSON):
    assert is_large(response, output_format)
    whole, pieced = encode_response(response, output_format), in_pieces(response, output_format)
    assert b"".join((pieced.header_json, *pieced.chunks)) == b"".join((whole.header_json, *whole.chunks))
    assert (pieced.json_length, pieced.body_bytes) == (whole.json_length, whole.body_bytes)


def numbers(datatype, count, name="OUT"):
    data = np.random.default_rng(5).bytes(count * DATATYPES[datatype].itemsize)
    return OutputTensor(name, datatype, [count], data)


def texts(*elements, name="TEXT"):
    return OutputTensor(name, "BYTES", [len(elements)], encode_elements([each.encode() for each in elements]))


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_datatype(datatype):
    """Random bits: floats among them are NaN and infinite."""
    check(response_of(numbers(datatype, 70_001)))


def test_several_outputs_and_parameters():
    tensors = [numbers("FP32", 20_000, "A"), texts("x", "y"), numbers("INT8", 0, "B"), numbers("BOOL", 70_000, "C")]
    check(response_of(*tensors, id='"7"', parameters={"a": 1.5, "b": "null", "c": float("nan")}))


@pytest.mark.parametrize(
    "elements",
    [
        ["short"] * 50_000,
        [""] * 30_000,
        ["é" * 100_000, "", "\U0001f600" * 200_000, '"\\\n' * 150_000, "end"],
        ["x" * 1_000_000],
    ],
    ids=["many", "empty", "long", "one"],
)
def test_texts(elements):
    check(response_of(texts(*elements)))


def test_binary_tensors_behind_json():
    output_format = OutputFormat(binary_default=True, overrides={"A": False, "B": True})
    check(response_of(numbers("INT64", 30_000, "A"), numbers("FP32", 50_000, "B")), output_format)


def test_classes():
    asked = {"A": ClassRequest(9_000, batches=True, labels=(b"first",))}
    tensor = OutputTensor("A", "INT32", [3, 10_000], np.random.default_rng(2).bytes(120_000))
    check(response_of(tensor), OutputFormat(binary_default=False, overrides={"A": False}, classes=asked))
    check(response_of(tensor), OutputFormat(binary_default=True, overrides={"A": True}, classes=asked))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode_elements([b"x" * 1000] * 100 + [b"\xff"]), "holds bytes that are not UTF-8"),
        (encode_elements([b"x" * 1_000_000 + b"\xc3"]), "holds bytes that are not UTF-8"),
        (encode_elements([b"x" * 100_000])[:-1], "output 'OUT' is broken: "),
        (encode_elements([b"x" * 1_000_000])[:-1], "output 'OUT' is broken: "),
        (encode_elements([b"x" * 100_000]) + b"\0\0\0", "output 'OUT' is broken: "),
    ],
)
def test_what_is_no_text(data, message):
    response = response_of(OutputTensor("OUT", "BYTES", [1], data))
    body = PiecewiseResponse(response, ALL_JSON)
    assert body.may_fail
    with pytest.raises(InferenceError, match=message):
        list(body.json_pieces())


def test_what_is_not_large():
    small = numbers("UINT8", LARGEST_WHOLE_BYTES)
    assert not is_large(response_of(small), ALL_JSON)
    large = numbers("UINT8", LARGEST_WHOLE_BYTES + 1)
    assert is_large(response_of(large), ALL_JSON)
    assert not is_large(response_of(large), ALL_BINARY)
