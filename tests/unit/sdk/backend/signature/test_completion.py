"""config.pbtxt completed from a model's file, and where it decides otherwise."""

import json
from contextlib import contextmanager

import pytest

from pybackend_sdk.backend import Signature, TensorInfo, complete_config
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.runtime import Runtime, bind_runtime

FILE = Signature(
    [TensorInfo("x", "TYPE_FP32", (-1, 3)), TensorInfo("mask", "TYPE_BOOL", (-1, 3), optional=True)],
    [TensorInfo("y", "TYPE_INT64", (-1,))],
)
FIXED = Signature([TensorInfo("x", "TYPE_FP32", (2, 3))], [TensorInfo("y", "TYPE_INT64", ())])
X, MASK = {"name": "x", "data_type": "TYPE_FP32"}, {"name": "mask", "data_type": "TYPE_BOOL", "optional": True}
Y = {"name": "y", "data_type": "TYPE_INT64"}


@contextmanager
def operator_settings(**settings):
    runtime = Runtime()
    runtime.backend_settings = {name.replace("_", "-"): value for name, value in settings.items()}
    previous = bind_runtime(runtime)
    try:
        yield
    finally:
        bind_runtime(previous)


def completed(signature=FILE, **fields):
    config = ModelConfig(json.dumps({"name": "m", **fields}))
    return complete_config(config, signature, "/models/m/1/model.onnx").as_dict()


def test_everything_comes_from_the_file():
    assert completed() == {
        "name": "m",
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [{**X, "dims": [3]}, {**MASK, "dims": [3]}],
        "output": [{**Y, "dims": [1], "reshape": {"shape": []}}],
    }


def test_a_file_without_a_batch_dimension():
    document = completed(FIXED)
    assert (document["max_batch_size"], "dynamic_batching" in document) == (0, False)
    assert document["input"] == [{**X, "dims": [2, 3]}]
    assert document["output"] == [{**Y, "dims": [1]}]


@pytest.mark.parametrize(("size", "batches"), [("0", False), ("1", False), ("16", True)])
def test_the_operator_sets_the_batch_size(size, batches):
    with operator_settings(default_max_batch_size=size):
        document = completed()
    assert document["max_batch_size"] == int(size)
    assert ("dynamic_batching" in document) is batches


def test_a_configured_scheduler_stays():
    document = completed(sequence_batching={"direct": {}})
    assert (document["max_batch_size"], "dynamic_batching" in document) == (4, False)


SEQUENCE = {
    "control_input": [
        {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]},
        {"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]},
    ],
    "state": [{"input_name": "before", "output_name": "after", "data_type": "TYPE_FP32", "dims": [-1, 5]}],
}
SEQUENTIAL = Signature(
    [
        TensorInfo("x", "TYPE_FP32", (-1, 3)),
        TensorInfo("START", "TYPE_FP32", (-1, 1)),
        TensorInfo("ID", "TYPE_UINT64", (-1, 1)),
        TensorInfo("before", "TYPE_FP32", (-1, -1, 5)),
    ],
    [TensorInfo("y", "TYPE_INT64", (-1, 1)), TensorInfo("after", "TYPE_FP32", (-1, -1, 5))],
)


def test_what_a_sequence_batcher_adds_are_no_inputs_and_outputs_of_clients():
    for given in ({}, {"input": [{**X, "dims": [3]}], "output": [{**Y, "dims": [1]}], "max_batch_size": 4}):
        document = completed(SEQUENTIAL, sequence_batching=SEQUENCE, **given)
        assert document["max_batch_size"] == 4
        assert document["input"] == [{**X, "dims": [3]}]
        assert document["output"] == [{**Y, "dims": [1]}]


def test_a_state_can_be_an_output_for_clients_too():
    after = {"name": "after", "data_type": "TYPE_FP32"}
    document = completed(SEQUENTIAL, sequence_batching=SEQUENCE, output=[after])
    assert document["output"] == [{**after, "dims": [-1, 5]}]


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        (FILE, "unexpected inference input 'START', allowed inputs are: x TYPE_FP32 [-1, 3], mask TYPE_BOOL [-1, 3]"),
        (
            SEQUENTIAL._replace(inputs=[SEQUENTIAL.inputs[0], TensorInfo("START", "TYPE_INT32", (-1, 1))]),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'START', model provides TYPE_INT32",
        ),
        (
            SEQUENTIAL._replace(inputs=[*SEQUENTIAL.inputs, TensorInfo("READY", "TYPE_FP32", (-1, 1))]),
            "unable to load model 'm', configuration expects 4 inputs, model provides 5: add READY TYPE_FP32 [-1, 1] to "
            "config.pbtxt",
        ),
    ],
)
def test_a_file_that_lacks_what_a_sequence_batcher_adds_or_has_more(signature, expected):
    with pytest.raises(TritonModelException) as raised:
        completed(signature, sequence_batching=SEQUENCE, input=[{**X, "dims": [3]}], max_batch_size=4)
    assert str(raised.value).startswith(expected)


def test_a_configured_batch_size_stays():
    document = completed(max_batch_size=9)
    assert (document["max_batch_size"], "dynamic_batching" in document) == (9, False)
    assert document["input"][0]["dims"] == [3]


def test_dims_with_the_batch_dimension_written_out_mean_no_batching():
    document = completed(input=[{**X, "dims": [-1, 3]}])
    assert document["max_batch_size"] == 0
    assert document["output"][0]["dims"] == [-1]


def test_dims_without_it_mean_batching_and_the_rest_is_filled_in():
    document = completed(input=[{"name": "x", "data_type": "TYPE_INVALID", "dims": [3]}])
    assert document["max_batch_size"] == 4
    assert document["input"] == [{**X, "dims": [3]}]
    assert [tensor["name"] for tensor in document["output"]] == ["y"]


def test_a_contradiction_is_refused():
    with pytest.raises(TritonModelException, match="unexpected inference output 'z', allowed outputs are: y"):
        completed(output=[{"name": "z"}])


def test_a_shape_that_the_file_does_not_state_must_be_configured():
    unknown = Signature([TensorInfo("x", "TYPE_FP32", None)], [])
    with pytest.raises(TritonModelException, match="the file does not state the shape of 'x': write its dims into"):
        completed(unknown)
    assert completed(unknown, input=[{"name": "x", "dims": [5]}])["input"] == [{**X, "dims": [5]}]


@pytest.mark.parametrize(("most_rows", "batch_size"), [(None, 4), (3, 3), (1, 1), (0, 0)])
def test_a_file_may_limit_the_batch(most_rows, batch_size):
    config = complete_config(ModelConfig(json.dumps({"name": "m"})), FILE._replace(most_rows=most_rows), "model.x")
    assert config.as_dict()["max_batch_size"] == batch_size
