"""Small answers whose frame is remembered: byte for byte those that are encoded anew."""

import struct

import numpy as np
import pytest

from pybackend.frontend.http.fast_path import small_answer, small_json_answer
from pybackend.frontend.http.infer_answer import BINARY_HEAD, JSON_HEAD
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON
from pybackend.protocol.json.infer_response import encode_response


def response(*outputs, **fields):
    return InferenceResponse("m", "3", outputs=[OutputTensor(*each) for each in outputs], **fields)


def encoded(answer, form):
    body = encode_response(answer, form)
    lengths = (body.body_bytes,) if body.json_length is None else (body.json_length, body.body_bytes)
    head = JSON_HEAD if body.json_length is None else BINARY_HEAD
    return head % lengths + b"".join((body.header_json, *body.chunks))


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


ORDINARY = [
    response(("A", "FP32", [2], floats(1.5, 0.1)), ("B", "INT8", (1, 3), b"\x01\xff\x80")),
    response(("A", "FP32", [2], floats(-0.0, 3e38)), ("B", "INT8", (1, 3), b"\x00\x02\x03")),
    response(("100 %d %b %%", "BOOL", [2], b"\x00\x07")),
    response(('"\\ü', "UINT64", [1], b"\xff" * 8)),
    response(("A", "FP32", [0], b"")),
    response(("A", "FP32", [0, 4], b""), ("B", "FP64", [], struct.pack("<d", 1e-310))),
    response(("A", "BF16", [2], b"\x80\x3f\xcd\xcc")),
    response(("A", "INT64", [100], np.arange(-50, 50, dtype=np.int64).tobytes())),
    response(("A", "FP16", [200], np.linspace(-1, 1, 200, dtype=np.float16).tobytes())),
    response(("A", "FP32", [1], memoryview(floats(1)))),
    response(),
]


@pytest.mark.parametrize("answer", ORDINARY)
def test_answers_in_json_are_those_of_the_encoder(answer):
    for _ in range(2):
        assert small_json_answer(answer) == encoded(answer, ALL_JSON)
    answer.id = "an id / of { printable } ASCII"
    assert small_json_answer(answer) == encoded(answer, ALL_JSON)
    answer.id = ""


@pytest.mark.parametrize("answer", ORDINARY)
def test_answers_in_binary_are_those_of_the_encoder(answer):
    if any(output.data for output in answer.outputs):
        for _ in range(2):
            assert small_answer(answer) == encoded(answer, ALL_BINARY)
    else:
        assert small_answer(answer) == b""


@pytest.mark.parametrize(
    "answer",
    [
        response(("A", "FP32", [2], floats(1, float("nan")))),
        response(("A", "FP32", [100], floats(*[float("-inf")] * 100))),
        response(("A", "BYTES", [1], b"\x01\x00\x00\x00a")),
        response(("A", "FP32", [2000], bytes(8000))),
        response(("A" * 4096, "FP32", [1], bytes(4))),
        response(("A", "FP32", [1], bytes(4)), parameters={"a": 1}),
    ],
)
def test_other_answers_are_encoded_anew(answer):
    known = response(("A", "FP32", [2], floats(1, 2)))
    assert small_json_answer(known)
    for _ in range(2):
        assert small_json_answer(answer) == b""
