"""What a model's file states, compared with config.pbtxt: what fits, and the words for what does not."""

import pytest

from pybackend_sdk.backend import Signature, TensorInfo, check_config
from pybackend_sdk.error import TritonModelException

FILE = Signature(
    [TensorInfo("x", "TYPE_FP32", (-1, 3)), TensorInfo("mask", "TYPE_BOOL", (-1, -1), optional=True)],
    [TensorInfo("y", "TYPE_INT64", (-1,)), TensorInfo("any", "TYPE_STRING", None)],
)
FIXED = Signature([TensorInfo("x", "TYPE_FP32", (2, 3))], [TensorInfo("y", "TYPE_INT64", ())])


def tensor(name, data_type, *dims, **more):
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


X, Y = tensor("x", "TYPE_FP32", 3), tensor("y", "TYPE_INT64", 1, reshape={"shape": []})


def check(inputs, outputs, signature=FILE, max_batch_size=4):
    config = {"name": "m", "max_batch_size": max_batch_size, "input": inputs, "output": outputs}
    check_config(config, signature, "/models/m/1/model.onnx")


def test_configurations_that_fit():
    check([X], [Y])
    check([X, tensor("mask", "TYPE_BOOL", 7)], [tensor("any", "TYPE_STRING", 5, 5)])
    check([tensor("x", "TYPE_FP32", -1, 3)], [tensor("y", "TYPE_INT64", -1)], max_batch_size=0)
    check([tensor("x", "TYPE_FP32", 2, 3)], [tensor("y", "TYPE_INT64", 1)], FIXED, 0)
    check([tensor("x", "TYPE_FP32", 6, reshape={"shape": [2, 3]})], [], FIXED, 0)


@pytest.mark.parametrize(
    ("inputs", "outputs", "more", "expected"),
    [
        (
            [tensor("X", "TYPE_FP32", 3)],
            [],
            {},
            "unexpected inference input 'X', allowed inputs are: x TYPE_FP32 [-1, 3], mask TYPE_BOOL [-1, -1] (in model.onnx "
            "of model 'm'). Did you mean 'x'?",
        ),
        (
            [X],
            [tensor("yy", "TYPE_INT64", 1)],
            {},
            "unexpected inference output 'yy', allowed outputs are: y TYPE_INT64 [-1], any TYPE_STRING (in model.onnx of "
            "model 'm'). Did you mean 'y'?",
        ),
        (
            [tensor("x", "TYPE_FP64", 3)],
            [],
            {},
            "unable to load model 'm', configuration expects datatype TYPE_FP64 for input 'x', model provides TYPE_FP32 "
            "(model.onnx)",
        ),
        (
            [tensor("x", "TYPE_FP32", 4)],
            [],
            {},
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1, 3], in model.onnx) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            "shape): [-1, 4]",
        ),
        (
            [tensor("x", "TYPE_FP32", -1, 3)],
            [],
            {"signature": FIXED, "max_batch_size": 0},
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [2, 3], in model.onnx) but the model configuration "
            "specifies 2 dimensions: [-1, 3]",
        ),
        (
            [X],
            [],
            {"signature": FIXED},
            "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the "
            "first dimension must be -1; but shape expected by the model is [2, 3] (model.onnx): write max_batch_size: 0",
        ),
        (
            [],
            [Y],
            {},
            "unable to load model 'm', configuration expects 0 inputs, model provides 2: add x TYPE_FP32 [-1, 3] to "
            "config.pbtxt",
        ),
    ],
)
def test_contradictions_name_both_sides(inputs, outputs, more, expected):
    with pytest.raises(TritonModelException) as caught:
        check(inputs, outputs, **more)
    assert str(caught.value).startswith(expected)
