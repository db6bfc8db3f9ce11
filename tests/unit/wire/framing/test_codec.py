"""Messages as bytes: both codecs carry the same structures, and garbage is a broken contract, never another exception."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend_wire.errors import LocalProtocolError, RemoteProtocolError
from pybackend_wire.framing import JSON, MAX_METADATA_BYTES, Frame, FrameDecoder, available, decode_frame, encode_frame
from pybackend_wire.messages import Failure, RequestResult, StubMessage, TensorPlace

CODECS = available()
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
MESSAGES = st.lists(st.lists(VALUES, max_size=4).map(lambda parts: [33, *parts]), max_size=4)


def through(codec, messages, tail=()):
    """Messages, and the tail, on the other side."""
    data = encode_frame(codec, messages, tail)
    decoder = FrameDecoder(read_bytes=len(data) + 8)
    decoder.get_buffer()[: len(data)] = data
    (frame,) = decoder.received(len(data))
    return decode_frame(codec, frame), frame.tail


def same(left, right):
    """Equality for which NaN equals itself, and 0.0 is not -0.0."""
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def test_both_codecs_are_there():
    assert [codec.name for codec in CODECS] == ["msgpack", "json"]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@given(messages=MESSAGES, tail=st.lists(st.binary(max_size=20), max_size=3))
def test_round_trip(codec, messages, tail):
    received, received_tail = through(codec, messages, tail)
    assert same(received, messages)
    assert received_tail == b"".join(tail)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_named_tuples_are_plain_sequences(codec):
    place = TensorPlace("OUT", "FP32", (2, 3), 0, 64, 24)
    message = (
        StubMessage.RESULT,
        1,
        2,
        3,
        4,
        [RequestResult(None, [place], None), RequestResult(Failure(1, "x"), (), {"k": 1})],
    )
    ((kind, *times, results),) = through(codec, [message])[0]
    assert (kind, times) == (37, [1, 2, 3, 4])
    assert results == [[None, [["OUT", "FP32", [2, 3], 0, 64, 24]], None], [[1, "x"], [], {"k": 1}]]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_texts_that_utf8_cannot_express_do_not_stop_a_message(codec):
    ((_, text),) = through(codec, [[33, "a \ud800 b"]])[0]
    assert text == "a ? b"


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@given(metadata=st.binary(max_size=100))
def test_garbage_is_a_broken_contract(codec, metadata):
    try:
        messages = decode_frame(codec, Frame(metadata, bytearray()))
    except RemoteProtocolError:
        return
    assert all(type(message) is list and type(message[0]) is int for message in messages)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("value", [None, 5, "text", {}, [5], [[]], [["33"]], [[True]], [[33], None], [{"0": 33}]])
def test_structures_that_are_no_messages(codec, value):
    with pytest.raises(RemoteProtocolError):
        decode_frame(codec, Frame(codec.dumps(value), bytearray()))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_endless_nesting_is_a_broken_contract(codec):
    metadata = b"[" * 100_000 if codec is JSON else b"\x91" * 100_000
    with pytest.raises(RemoteProtocolError):
        decode_frame(codec, Frame(metadata, bytearray()))


def test_keys_that_are_no_text_are_a_broken_contract():
    msgpack = CODECS[0]
    with pytest.raises(RemoteProtocolError):
        decode_frame(msgpack, Frame(b"\x91\x92\x21\x81\x01\x02", bytearray()))  # [[33, {1: 2}]]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_too_large_is_a_fault_of_this_side(codec):
    with pytest.raises(LocalProtocolError):
        encode_frame(codec, [[33, "x" * MAX_METADATA_BYTES]])


def test_json_is_json():
    data = encode_frame(JSON, [[33, "ä", None, True, 1.5]])
    assert json.loads(data[8:]) == [[33, "ä", None, True, 1.5]]
