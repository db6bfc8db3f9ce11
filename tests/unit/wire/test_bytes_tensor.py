"""The serialised form of BYTES tensors."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend_wire.bytes_tensor import BytesTensorError, decode_elements, encode_elements


@given(st.lists(st.binary(max_size=40)))
def test_round_trip(elements):
    data = encode_elements(elements)
    assert data == b"".join(struct.pack("<I", len(element)) + element for element in elements)
    for form in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
        assert decode_elements(form) == elements


@given(st.lists(st.binary(max_size=10), min_size=1), st.integers(min_value=1))
def test_cut_short(elements, missing):
    data = encode_elements(elements)
    cut = data[: len(data) - 1 - missing % len(data)]
    try:
        found = decode_elements(cut)
    except BytesTensorError:
        return
    assert found == elements[: len(found)]
    assert encode_elements(found) == cut


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\1\0\0", "Invalid bytes tensor data: incomplete length field"),
        (b"\1\0\0\0x\1", "Invalid bytes tensor data: incomplete length field"),
        (b"\2\0\0\0x", "Invalid bytes tensor data: string extends beyond buffer"),
        (b"\xff\xff\xff\xffx", "Invalid bytes tensor data: string extends beyond buffer"),
    ],
)
def test_texts(data, text):
    with pytest.raises(BytesTensorError) as refused:
        decode_elements(data)
    assert str(refused.value) == text


@given(st.binary(max_size=60))
def test_garbage(data):
    try:
        elements = decode_elements(data)
    except BytesTensorError:
        return
    assert encode_elements(elements) == data


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        (b"bytes", b"bytes"),
        (bytearray(b"array"), b"array"),
        (memoryview(b"view"), b"view"),
        (np.bytes_(b"numpy"), b"numpy"),
        ("ä€", "ä€".encode()),
        (np.str_("text"), b"text"),
        (None, b"None"),
        (5, b"5"),
        (np.float32(1.5), b"1.5"),
        ([1], b"[1]"),
    ],
)
def test_elements_become_bytes(element, expected):
    assert decode_elements(encode_elements([element])) == [expected]


def test_what_utf8_cannot_express_is_an_error():
    with pytest.raises(UnicodeEncodeError):
        encode_elements(["\ud800"])
