"""The protocol's small documents."""

from __future__ import annotations

import json

import pytest
import rapidjson

from pybackend.protocol.metadata import encode_error, model_metadata, server_metadata


def test_server_metadata():
    assert server_metadata("triton", "1.0") == (
        b'{"name":"triton","version":"1.0","extensions":["classification","sequence","model_repository",'
        b'"model_repository(unload_dependents)","schedule_policy","model_configuration","system_shared_memory",'
        b'"cuda_shared_memory","binary_tensor_data","parameters","statistics","trace","logging"]}'
    )


@pytest.mark.parametrize(("max_batch_size", "batch"), [(0, []), (1, [-1]), (8, [-1])])
def test_model_metadata(max_batch_size, batch, make_signature):
    signature = make_signature(("IN", "FP32", [-1, 4]), outputs=(("OUT", "BYTES", [1]),), max_batch_size=max_batch_size)
    assert json.loads(model_metadata(signature, ["1", "10"], "python")) == {
        "name": "m",
        "versions": ["1", "10"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [*batch, -1, 4]}],
        "outputs": [{"name": "OUT", "datatype": "BYTES", "shape": [*batch, 1]}],
    }


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("plain", '{"error":"plain"}'),
        ('"quoted"\n\t\\', r'{"error":"\"quoted\"\n\t\\"}'),
        ("é😀", '{"error":"é😀"}'),
        ("a\udcffb\ud800", '{"error":"a?b?"}'),
        ("\0\x1f\x7f", '{"error":"\\u0000\\u001f\x7f"}'),
    ],
)
def test_errors(message, text):
    assert encode_error(message) == text.encode()
    rapidjson.loads(encode_error(message))
