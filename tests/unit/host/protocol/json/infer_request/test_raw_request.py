"""Bodies without JSON."""

import pytest

from pybackend.errors import ErrorCode
from pybackend.inference.validation import validate
from pybackend.protocol.infer_plan import ALL_BINARY
from pybackend.protocol.json.infer_request import parse_raw
from pybackend.protocol.limits import BodyLimits

RID = "[request id: <id_unknown>] "


def parse(body, signature, limit=1000):
    return parse_raw(body, signature, model_version="2", limits=BodyLimits(limit))


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "size", "shape"),
    [
        ([4], 0, 16, [4]),
        ([2, 2], 8, 16, [1, 2, 2]),
        ([-1], 0, 20, [5]),
        ([-1], 0, 0, [0]),
        ([2, -1, 3], 4, 48, [1, 2, 2, 3]),
        ([0, -1], 0, 0, [0, 0]),
    ],
)
def test_the_shape_is_deduced(dims, max_batch_size, size, shape, make_signature):
    signature = make_signature(("X", "FP32", dims), max_batch_size=max_batch_size)
    body = bytes(size)
    plan = parse(body, signature)
    (tensor,) = plan.request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("X", "FP32", shape)
    assert tensor.data is body
    assert (plan.binary_inputs, plan.binary_bytes, plan.output_format) == ([], 0, ALL_BINARY)
    assert (plan.request.model_name, plan.request.model_version) == ("m", "2")
    validate(plan.request, signature)


@pytest.mark.parametrize("body", [b"", b"hello", memoryview(b"hello")])
@pytest.mark.parametrize("max_batch_size", [0, 2])
def test_one_string(body, max_batch_size, make_signature):
    signature = make_signature(("X", "BYTES", [1]), max_batch_size=max_batch_size)
    plan = parse(body, signature)
    assert plan.request.inputs[0].data == len(body).to_bytes(4, "little") + bytes(body)
    validate(plan.request, signature)


@pytest.mark.parametrize(
    ("inputs", "size", "message"),
    [
        (
            [(name, "FP32", [4]) for name in "ABC"],
            0,
            RID
            + "Raw request must only have 1 input (found 1) to be deduced but got 3 inputs in 'm' model configuration",
        ),
        (
            [("X", "FP32", [-1, -1])],
            16,
            RID + "The shape of the raw input 'X' can not be deduced because there are more than one variable-sized "
            "dimension",
        ),
        *[
            ([("X", "BYTES", dims)], 4, RID + "For BYTE datatype raw input 'X', the model must have input shape [1]")
            for dims in ([2], [-1], [0])
        ],
        (
            [("X", "FP32", [4])],
            1001,
            "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 bytes. "
            "Use --http-max-input-size to increase the limit.",
        ),
    ],
)
def test_refusals(inputs, size, message, make_signature, refusal):
    assert refusal(parse, bytes(size), make_signature(*inputs)) == (ErrorCode.INVALID_ARG, message)


@pytest.mark.parametrize(("dims", "size", "expected"), [([4], 12, 16), ([-1], 18, 16), ([0, -1], 3, 0)])
def test_a_size_that_does_not_fit(dims, size, expected, make_signature, refusal):
    signature = make_signature(("X", "FP32", dims))
    message = refusal(validate, parse(bytes(size), signature).request, signature)[1]
    assert message == f"{RID}input byte size mismatch for input 'X' for model 'm'. Expected {expected}, got {size}"


def test_decompressed_limit(refusal):
    BodyLimits(10).check_decompressed(10)
    assert refusal(BodyLimits(10).check_decompressed, 11) == (
        ErrorCode.INVALID_ARG,
        "Decompressed data size exceeds the maximum allowed value of 10 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )
