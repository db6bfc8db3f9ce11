"""Tensors are measured as their shapes say, and their bytes are copied whole."""

import asyncio

import pytest

from pybackend.inference.tensor import INT64_MAX, LARGE_COPY_BYTES, copy_bytes, element_count, shape_text


@pytest.mark.parametrize("nbytes", [0, 1, LARGE_COPY_BYTES - 1, LARGE_COPY_BYTES])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_copy(nbytes, kind):
    source = bytes(range(256)) * (nbytes // 256) + b"z" * (nbytes % 256)
    memory = bytearray(nbytes + 2)
    asyncio.run(copy_bytes(memoryview(memory)[1:-1], kind(source)))
    assert memory == b"\0" + source + b"\0"


@pytest.mark.parametrize(
    ("datatype", "shape", "count"),
    [
        ("FP32", [], 1),
        ("FP32", [2, 3, 4], 24),
        ("FP32", [0], 0),
        ("FP32", [INT64_MAX, 0, INT64_MAX], 0),
        ("UINT8", [INT64_MAX], INT64_MAX),
        ("UINT8", [7, INT64_MAX // 7], INT64_MAX // 7 * 7),
        ("FP64", [INT64_MAX // 8], INT64_MAX // 8),
    ],
)
def test_shapes_that_can_be_counted(datatype, shape, count):
    assert element_count("IN", datatype, shape) == count


TOO_LARGE = {
    "elements": ("UINT8", [2**32, 2**32], "shape [4294967296,4294967296] causes total element count to exceed"),
    "a dimension beside a zero": ("UINT8", [0, 2**63], "shape [0,9223372036854775808] causes total element count"),
    "bytes": ("FP64", [INT64_MAX // 8 + 1], "element count (1152921504606846976) * data type size (8) exceeds"),
    "without end": ("UINT8", [2] * 100_000, "causes total element count to exceed"),
}


@pytest.mark.parametrize(("datatype", "shape", "text"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_shapes_that_cannot(datatype, shape, text, refusal):
    code, message = refusal(element_count, "IN", datatype, shape)
    assert code.name == "INVALID_ARG"
    assert text in message
    assert "'IN'" in message


def test_text():
    assert shape_text([-1, 16]) == "[-1,16]"
    assert shape_text([]) == "[]"
