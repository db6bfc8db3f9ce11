"""Names of datatypes, and BYTES as raw bytes."""

import numpy as np
import pytest

from pybackend_sdk.datatypes import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

BY_NAME = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
BY_CODE = [np.bool_, *list(BY_NAME.values())[1:]]


def test_config_names():
    assert TRITON_STRING_TO_NUMPY == BY_NAME
    assert {name: triton_string_to_numpy(name) for name in BY_NAME} == BY_NAME


@pytest.mark.parametrize("name", ["TYPE_BF16", "FP32", "TYPE_INVALID", ""])
def test_names_without_a_numpy_type(name):
    with pytest.raises(KeyError):
        triton_string_to_numpy(name)


def test_codes_both_ways():
    assert [triton_to_numpy_type(code) for code in range(1, 14)] == BY_CODE
    assert [numpy_to_triton_type(numpy_type) for numpy_type in BY_CODE] == list(range(1, 14))
    assert numpy_to_triton_type(np.bytes_) == 13
    assert numpy_to_triton_type(np.dtype("float32")) == 11
    assert numpy_to_triton_type(bool) == 1


@pytest.mark.parametrize("code", [0, 14, 15, -1, None, "11"])
def test_codes_without_a_numpy_type(code):
    assert triton_to_numpy_type(code) is None


@pytest.mark.parametrize("numpy_type", [np.str_, np.complex64, np.datetime64, None, "float32"])
def test_numpy_types_without_a_code(numpy_type):
    assert numpy_to_triton_type(numpy_type) is None


def _wire(*elements):
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


@pytest.mark.parametrize(
    ("array", "wire"),
    [
        (np.array([b"a", b"bc"]), _wire(b"a", b"bc")),
        (np.array([b"a", "ä", None, 5, b"\0"], np.object_), _wire(b"a", "ä".encode(), b"None", b"5", b"\0")),
        (np.array([[b"a", b"b"], [b"c", b"d"]], np.object_).T, _wire(b"a", b"c", b"b", b"d")),
        (np.array(b"scalar", np.object_), _wire(b"scalar")),
        (np.array([], np.object_), ()),
        (np.empty((2, 0), np.float32), ()),
        (np.array([1.0]), None),
        (np.array(["text"]), None),
    ],
)
def test_serialise(array, wire):
    assert serialize_byte_tensor(array) == wire


@pytest.mark.parametrize("elements", [[], [b""], [b"a", b"", b"b\0c"]])
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_deserialise(elements, buffer):
    array = deserialize_bytes_tensor(buffer(_wire(*elements)))
    assert (array.dtype, array.shape) == (np.object_, (len(elements),))
    assert array.tolist() == elements


@pytest.mark.parametrize(
    ("wire", "text"),
    [(b"\x01", "incomplete length field"), (_wire(b"a") + b"\x02\0\0\0b", "string extends beyond buffer")],
)
def test_deserialise_what_is_cut_short(wire, text):
    with pytest.raises(ValueError, match="^Invalid bytes tensor data: " + text):
        deserialize_bytes_tensor(wire)
