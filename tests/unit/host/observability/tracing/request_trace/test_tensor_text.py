"""Elements of tensors as text."""

import numpy as np
import pytest

from pybackend.observability.tracing.request_trace import RecordedTensor, elements_text


def text(datatype, data):
    return elements_text(RecordedTensor("TENSOR_QUEUE_INPUT", "IN", datatype, (1,), data, len(data), 0))


@pytest.mark.parametrize(
    ("datatype", "array", "wanted"),
    [
        ("INT32", np.array([1, -2, 3], np.int32), "1,-2,3"),
        ("FP32", np.array([1.5, np.nan], np.float32), "1.5,nan"),
        ("FP16", np.array([0.5], np.float16), "0.5"),
        ("BOOL", np.array([True, False]), "1,0"),
        ("BF16", np.array([0x3FC0, 0xC000], np.uint16), "1.5,-2.0"),
        ("UINT64", np.array([2**64 - 1], np.uint64), str(2**64 - 1)),
    ],
)
def test_elements(datatype, array, wanted):
    assert text(datatype, array.tobytes()) == wanted


def test_an_element_that_was_cut_is_left_out():
    assert text("INT32", np.array([1, 2], np.int32).tobytes()[:-1]) == "1"
    assert text("BYTES", b"\x01\x00\x00\x00a\x05\x00\x00\x00b") == "a"


def test_strings():
    assert text("BYTES", b"\x02\x00\x00\x00\xc3\xa4\x00\x00\x00\x00\x01\x00\x00\x00\xff") == "\u00e4,,\\xff"
