"""What only other front ends than HTTP can send, and the two halves of validation."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, request_prefix
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import has_whole_elements, validate, validate_bytes_tensors, validate_header
from pybackend.modelconfig.signature import ModelSignature, TensorSignature


def request_with(*inputs, request_id=""):
    return InferenceRequest("m", id=request_id, inputs=list(inputs))


@pytest.mark.parametrize(
    ("shape", "max_batch_size"), [([-1, 16], 0), ([-1, 16], 8), ([2, -5], 0), ([2, -1], 8), ([-1, -16], 8)]
)
def test_open_dimensions_in_a_request(shape, max_batch_size, make_signature, refusal):
    dims = [-1] if max_batch_size else [-1, -1]
    signature = make_signature(("X", "FP32", dims), max_batch_size=max_batch_size)
    code, message = refusal(validate, request_with(InputTensor("X", "FP32", shape, b""), request_id="1"), signature)
    assert code == ErrorCode.INVALID_ARG
    text = str(shape).replace(" ", "")
    assert message == (
        f"[request id: 1] All input dimensions should be specified for input 'X' for model 'm', got {text}"
    )


def test_byte_size_of_a_huge_shape(make_signature, refusal):
    signature = make_signature(("X", "FP32", [-1, -1]))
    request = request_with(InputTensor("X", "FP32", [2**62, 2**62], b"1234"))
    assert refusal(validate, request, signature)[1].startswith("invalid shape for input 'X'")


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "batch_size"), [([3, 4], 8, 3), ([8, 4], 8, 8), ([0, 4], 8, 1), ([4], 0, 1)]
)
def test_batch_size(shape, max_batch_size, batch_size, make_signature):
    signature = make_signature(("X", "INT8", [4]), max_batch_size=max_batch_size)
    count = 4 * shape[0] if max_batch_size else 4
    request = request_with(InputTensor("X", "INT8", shape, bytes(count)))
    validate(request, signature)
    assert request.batch_size == batch_size


def test_batching_model_with_optional_inputs_only(make_signature):
    request = request_with()
    validate(request, make_signature(("X", "INT8", [4], True), max_batch_size=8))
    assert request.batch_size == 1


def test_tuples_as_shapes(make_signature):
    signature = make_signature(("X", "INT8", [2, -1]), max_batch_size=8)
    validate(request_with(InputTensor("X", "INT8", (1, 2, 3), bytes(6))), signature)


def test_scalars(make_signature):
    validate(request_with(InputTensor("X", "INT8", [], b"1")), make_signature(("X", "INT8", [])))


def test_bytes_tensors_are_walked_in_the_second_half(make_signature, refusal):
    signature = make_signature(("X", "BYTES", [2]), ("Y", "FP32", [1]))
    x, y = InputTensor("X", "BYTES", [2]), InputTensor("Y", "FP32", [1])
    request = request_with(x, y)
    validate_header(request, signature, [(x, 7), (y, 4)])
    x.data = memoryview(struct.pack("<I", 3) + b"abc")
    assert refusal(validate_bytes_tensors, request, signature)[1].endswith("for model 'm', got 1")
    assert refusal(validate_header, request, signature, [(y, 5)])[1].endswith("Expected 4, got 5")


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("elements", [[b""] * 100, [b"abc"] * 100, [b"abc"] * 99 + [b"abcd"], [b"a", b"bcd"] * 50])
def test_many_elements(form, elements, make_signature, refusal):
    data = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    signature = make_signature(("X", "BYTES", [-1]))
    validate(request_with(InputTensor("X", "BYTES", [100], form(data))), signature)
    for wrong in (50, 99, 101, 200):
        refusal(validate, request_with(InputTensor("X", "BYTES", [wrong], form(data))), signature)


def test_elements_whose_sizes_only_add_up(make_signature, refusal):
    """As many bytes as 100 equal elements would have, but other lengths in them."""
    data = struct.pack("<I", 5) * 200
    signature = make_signature(("X", "BYTES", [-1]))
    refusal(validate, request_with(InputTensor("X", "BYTES", [100], data)), signature)


def test_request_prefix():
    assert request_prefix("") == "[request id: <id_unknown>] "
    assert request_prefix("a b") == "[request id: a b] "


TEXTS = st.lists(st.sampled_from([b"", b"a", b"bcd" * 20, b"\0\0\0\0"]), max_size=5)


@given(elements=TEXTS, cut=st.integers(0, 4), more=st.binary(max_size=4), numbers=st.sampled_from([3, 4, 5]))
def test_the_quick_check_passes_only_what_is_valid(elements, cut, more, numbers):
    data = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    data = data[: len(data) - cut] + more
    signature = ModelSignature("m", 0, {"X": TensorSignature("X", "BYTES", (-1,))}, {})
    request = request_with(InputTensor("X", "BYTES", [len(elements)], data))
    try:
        validate_bytes_tensors(request, signature)
    except InferenceError:
        assert not has_whole_elements(request)
    else:
        assert has_whole_elements(request)
    assert has_whole_elements(request_with(InputTensor("Y", "INT16", [2], bytes(numbers)))) == (numbers == 4)
    assert not has_whole_elements(request_with(InputTensor("X", "BYTES", [1])))
