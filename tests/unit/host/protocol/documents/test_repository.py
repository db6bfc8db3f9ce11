"""Load requests with large files: the files are cut out of the document, and all else is bounded."""

import base64
import json

import pytest

from pybackend.errors import InferenceError
from pybackend.protocol.documents.repository import parse_load_request

CONTENT = bytes(range(256)) * 20_000
TEXT = base64.b64encode(CONTENT).decode()


def load(**parameters):
    return json.dumps({"parameters": parameters})


@pytest.mark.parametrize("escaped", [False, True])
def test_large_files(escaped):
    config = json.dumps({"name": 'a "quoted\\" text', "filler": ['"'] * 20_000, "long": "b" * 100_000})
    small = base64.b64encode(b"small").decode()
    body = load(config=config, **{"file:a": TEXT, "file:b": small, "file:c": "", "file:d": TEXT[:-4]})
    if escaped:
        body = body.replace("/", "\\/")  # as PHP and Java write it
    assert parse_load_request(body.encode()) == (
        config,
        {"file:a": CONTENT, "file:b": b"small", "file:c": b"", "file:d": base64.b64decode(TEXT[:-4])},
    )


def test_a_long_configuration_without_quotes():
    assert parse_load_request(load(config="\n" * 100_000).encode()) == ("\n" * 100_000, {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (load(**{"file:a": TEXT + "!"}), "the content of 'file:a' is not base64"),
        (load(**{"file:a": TEXT[:-2]}), "the content of 'file:a' is not base64"),
        (load(**{"file:a": "AA==" + TEXT}), "the content of 'file:a' is not base64"),
        (load(config=3, **{"file:a": TEXT}), "Unable to parse 'config': attempt to access JSON non-string as string"),
        (load(other=TEXT), "unexpected error on creating Triton parameter: unrecognized load parameter 'other'"),
        (load(**{"file:a": TEXT})[:-1], "failed to parse the request JSON buffer"),
        (load(config="a" * 2_100_000), "the request has more than 2097152 bytes beside"),
        (load(config='"' * 300_000), "the request has more than 2097152 bytes beside"),
        ('{"a": [' + "1," * 2_000_000 + '1], "b": "c"}', "the request has more than 2097152 bytes beside"),
    ],
    ids=["alphabet", "length", "padding", "type", "name", "syntax", "configuration", "quotes", "numbers"],
)
def test_refusals(body, message):
    with pytest.raises(InferenceError) as caught:
        parse_load_request(body.encode())
    assert caught.value.message.startswith(message)
