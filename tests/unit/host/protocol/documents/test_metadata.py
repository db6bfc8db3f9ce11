"""The protocol's small documents."""

import json
import platform

import numpy as np
import pytest
import rapidjson

from pybackend.protocol.documents.metadata import (
    encode_error,
    environment_document,
    model_metadata,
    sandbox_document,
    server_metadata,
)


def test_server_metadata():
    assert server_metadata("triton", "1.0", ["parameters", "logging"]) == (
        b'{"name":"triton","version":"1.0","extensions":["parameters","logging"]}'
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


def test_a_sandbox():
    facts = {"level": "strict", "not_in_force": {"landlock": "the kernel is too old"}}
    assert json.loads(sandbox_document(facts)) == facts
    assert json.loads(sandbox_document(None)) == {"level": "off", "not_in_force": {}}


def test_an_environment():
    facts = {"path": "/srv/env.tar.gz", "python": "3.8.20", "numpy": "1.24.4"}
    assert json.loads(environment_document(facts)) == facts
    assert json.loads(environment_document(None)) == {
        "path": None,
        "python": platform.python_version(),
        "numpy": np.__version__,
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
