"""Elements to wire bytes and back, for every datatype."""

import struct
from math import inf, isnan, nan

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend.protocol.json.tensor import decode_values, encode_json, encode_values
from pybackend_wire.bytes_tensor import BytesTensorError
from pybackend_wire.dtypes import DATATYPES

INTEGERS = [name for name in DATATYPES if "INT" in name]
COUNTS = [0, 1, 63, 64, 65, 200]


def elements(datatype):
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text()
    if datatype in INTEGERS:
        bits = DATATYPES[datatype].itemsize * 8
        return (
            st.integers(0, 2**bits - 1) if datatype[0] == "U" else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
    width = {"FP16": 16, "BF16": 16, "FP32": 32, "FP64": 64}[datatype]
    floats = st.floats(width=width, allow_nan=False)
    return floats.map(bf16) if datatype == "BF16" else floats


def bf16(value):
    return struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0]


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=st.data())
@settings(max_examples=80)
def test_round_trip(datatype, data):
    values = data.draw(st.lists(elements(datatype), max_size=80))
    wire = encode_values(datatype, values)
    if datatype != "BYTES":
        assert len(wire) == len(values) * DATATYPES[datatype].itemsize
    assert list(decode_values(datatype, wire)) == values
    assert list(decode_values(datatype, memoryview(wire))) == values


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("count", COUNTS)
def test_integers_are_cut_to_their_width(datatype, count):
    limit = 2**64 if datatype[0] == "U" else 2**63
    values = [(limit - 1 - 7**i % limit) for i in range(count)]
    wide = np.array(values, dtype=np.uint64 if datatype[0] == "U" else np.int64)
    assert encode_values(datatype, values) == wide.astype(DATATYPES[datatype].numpy).tobytes()


def test_wrapping():
    assert encode_values("INT8", [300, -129, 128]) == struct.pack("<3b", 44, 127, -128)
    assert encode_values("UINT8", [256, 511]) == b"\0\xff"


@pytest.mark.parametrize(("datatype", "value"), [("INT64", 2**63), ("INT8", -(2**63) - 1), ("UINT16", 2**64)])
@pytest.mark.parametrize("count", [1, 100])
def test_integers_beyond_64_bits(datatype, value, count):
    with pytest.raises(OverflowError):
        encode_values(datatype, [value] * count)


@pytest.mark.parametrize("count", COUNTS)
def test_floats_are_rounded(count):
    values = [0.1, 1e300, -1e300, 1, 2**60, 1e-50, nan, inf][:count] * max(1, count // 8)
    with np.errstate(over="ignore"):
        assert encode_values("FP32", values) == np.array(values, dtype=np.float64).astype("<f4").tobytes()
        assert encode_values("FP16", values) == np.array(values, dtype=np.float64).astype("<f2").tobytes()
    assert encode_values("FP64", values) == np.array(values, dtype="<f8").tobytes()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (1.00390625, 0x3F80),  # half-way: to even
        (1.01171875, 0x3F82),  # half-way: to even
        (1.005, 0x3F81),
        (-2.5, 0xC020),
        (3.4e38, 0x7F80),  # beyond the largest after rounding
        (1e300, 0x7F80),
        (inf, 0x7F80),
        (-inf, 0xFF80),
        (nan, 0x7FC0),
    ],
)
def test_bf16(value, bits):
    wire = encode_values("BF16", [value])
    assert int.from_bytes(wire, "little") == bits
    (back,) = decode_values("BF16", wire)
    assert isnan(back) if isnan(value) else back == pytest.approx(value, rel=0.01) or abs(value) > 3e38


@pytest.mark.parametrize("count", COUNTS)
def test_booleans(count):
    assert encode_values("BOOL", [True] * count) == b"\1" * count


@pytest.mark.parametrize("count", [3, 100])
def test_any_byte_but_zero_is_true(count):
    assert list(decode_values("BOOL", b"\0\1\2" + b"\xff" * (count - 3))) == [False, True, True] + [True] * (count - 3)


@pytest.mark.parametrize("wire", [b"\1", b"\2\0\0\0a"])
def test_broken_bytes_tensor(wire):
    with pytest.raises(BytesTensorError):
        decode_values("BYTES", wire)


def test_not_text():
    with pytest.raises(UnicodeDecodeError):
        decode_values("BYTES", b"\1\0\0\0\xff")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_json_text(datatype):
    value = {"BOOL": "true", "BYTES": '"é\\n"'}.get(datatype, "1")
    (expected,) = msgspec.json.decode(f"[{value}]")
    wire = encode_values(datatype, [expected] * 4)
    flat, nested = msgspec.Raw(f"[{value},{value},{value},{value}]".encode()), [value, value]
    assert encode_json(datatype, flat, 4) == wire
    text = msgspec.Raw(f"[ [{','.join(nested)}], [{','.join(nested)}] ]".encode())
    assert encode_json(datatype, text, 4) == wire
    assert encode_json(datatype, text, 3) is None
    assert encode_json(datatype, msgspec.Raw(b"{}"), 0) is None
