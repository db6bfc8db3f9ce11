"""What does not fit a model's configuration is refused and explained, before the model and after it."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pybackend_testing import InputError, OutputError
from tests.unit.testing.conftest import configuration

PASS = """
return [
    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(r.inputs()[0].shape(), np.float32))]) for r in requests
]
"""
TWO = {"LEFT": "FP32 4", "RIGHT": "FP32 4"}


def _refused(harness, **inputs):
    with pytest.raises(InputError) as caught:
        harness.infer(inputs)
    return str(caught.value)


def test_names(execute, snapshot):
    harness = execute(PASS, configuration({**TWO, "EXTRA": "INT32 1 optional"}))
    four = np.zeros(4, np.float32)
    assert _refused(harness, LEFT=four, RIHGT=four) == snapshot
    assert _refused(harness, left=four, RIGHT=four) == snapshot
    assert _refused(harness, x=four) == snapshot
    assert _refused(harness, LEFT=four) == snapshot
    assert harness.infer(LEFT=four, RIGHT=four, EXTRA=None)["OUT"].shape == (4,)
    assert harness.infer(LEFT=four, RIGHT=four, EXTRA=[1])["OUT"].shape == (4,)


def test_all_inputs_missing(execute, snapshot):
    assert _refused(execute(PASS, configuration(TWO))) == snapshot


def test_names_of_outputs(execute, snapshot):
    with pytest.raises(InputError) as caught:
        execute(PASS).infer(IN=[1], outputs=["OT"])
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("configured", "value", "starts"),
    [
        ("FP32", np.zeros(1), "inference input 'IN' data-type is 'FP64', but model 'm' expects 'FP32'"),
        ("INT64", np.zeros(1, np.int32), "inference input 'IN' data-type is 'INT32', but model 'm' expects 'INT64'"),
        ("STRING", np.zeros(1), "inference input 'IN' data-type is 'FP64', but model 'm' expects 'BYTES'"),
        ("FP32", np.array(["1"]), "inference input 'IN' data-type is 'BYTES', but model 'm' expects 'FP32'"),
        ("FP32", np.zeros(1, complex), "input 'IN' for model 'm' has dtype complex128"),
        ("BF16", np.zeros(1, np.float32), "inference input 'IN' data-type is 'FP32', but model 'm' expects 'BF16'"),
        ("INT32", [1.5], "input 'IN' for model 'm': [1.5] does not fit INT32"),
        ("UINT8", [256], "input 'IN' for model 'm': [256] does not fit UINT8"),
        ("UINT8", [-1], "input 'IN' for model 'm': [-1] does not fit UINT8"),
        ("BOOL", [1], "input 'IN' for model 'm': [1] does not fit BOOL"),
        ("FP32", ["1"], "input 'IN' for model 'm': ['1'] does not fit FP32"),
        ("FP32", pb_utils.Tensor("IN", np.zeros(1)), "inference input 'IN' data-type is 'FP64', but model 'm'"),
    ],
)
def test_datatypes(execute, configured, value, starts, snapshot):
    message = _refused(execute(PASS, configuration(configured + " -1")), IN=value)
    assert message.startswith(starts)
    assert message == snapshot


@pytest.mark.parametrize(
    ("configured", "value"),
    [
        ("FP32", [1, 2]),
        ("FP16", [0.5]),
        ("UINT8", [255]),
        ("INT64", (1, 2)),
        ("BOOL", [True]),
        ("STRING", ["a", b"b"]),
        ("STRING", ["x"]),
        ("FP32", []),
        ("FP64", range(3)),
        ("FP32", pb_utils.Tensor("other", np.zeros(1, np.float32))),
    ],
)
def test_python_values_take_the_configured_datatype(execute, configured, value):
    harness = execute(PASS, configuration(configured + " -1"))
    assert harness.infer(IN=value).error is None


def test_a_tensor_keeps_the_inputs_name(execute):
    harness = execute("self.names = [t.name() for t in request.inputs()]\n" + PASS)
    harness.infer(IN=pb_utils.Tensor("other", np.zeros(1, np.float32)))
    assert harness.model.names == ["IN"]


def test_shapes(execute, snapshot):
    harness = execute(PASS, configuration("FP32 2 -1"))
    for wrong in (np.zeros((3, 4)), np.zeros(2), np.zeros((1, 2, 4)), np.float32(1)):
        message = _refused(harness, IN=wrong.astype(np.float32))
        assert message.startswith("unexpected shape for input 'IN' for model 'm'. Expected [2,-1], got ")
        assert message == snapshot


def test_batches(execute, snapshot):
    harness = execute(PASS, configuration(TWO, "FP32 4", max_batch_size=8))

    def refused(left, right):
        return _refused(harness, LEFT=np.zeros(left, np.float32), RIGHT=np.zeros(right, np.float32))

    assert refused(4, 4) == snapshot
    assert refused((2, 4), (3, 4)) == snapshot
    assert refused((9, 4), (9, 4)) == snapshot
    assert refused((), 4) == snapshot
    batch = np.zeros((8, 4), np.float32)
    assert harness.infer(LEFT=batch, RIGHT=batch)["OUT"].shape == (8, 4)


def test_parameters_of_requests(execute, snapshot):
    with pytest.raises(InputError) as caught:
        execute(PASS).infer(IN=[1], parameters={"list": [1]})
    assert str(caught.value) == snapshot


def test_control_tensors_of_sequences_are_the_tests_to_give(execute):
    config = configuration(
        sequence_batching={
            "control_input": [
                {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}
            ]
        }
    )
    harness = execute("self.names = [t.name() for t in request.inputs()]\n" + PASS, config)
    harness.infer(IN=[1.0], START=np.ones(1, np.int32))
    assert harness.model.names == ["IN", "START"]


# --- Outputs ---


def _wrong(harness, **inputs):
    with pytest.raises(OutputError) as caught:
        harness.infer(inputs)
    return str(caught.value)


def _model(expression, **tensors):
    made = ", ".join(f'pb_utils.Tensor("{name}", {array})' for name, array in tensors.items())
    return f"return [pb_utils.InferenceResponse([{made}])]  # {expression}"


def test_output_names(execute, snapshot):
    assert _wrong(execute(_model("", OTU="np.zeros(1, np.float32)")), IN=[1]) == snapshot


def test_several_outputs_of_one_name(execute, snapshot):
    body = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.float32([n])) for n in (1, 2, 3)])]"
    assert _wrong(execute(body), IN=[1]) == snapshot


def test_output_datatype_and_shape(execute, snapshot):
    harness = execute(_model("", OUT="np.zeros((2, 3))"), configuration(outputs="FP32 2 2"))
    assert _wrong(harness, IN=[1]) == snapshot


def test_output_batch(execute, snapshot):
    harness = execute(_model("", OUT="np.zeros(2, np.float32)"), configuration(outputs="FP32 2", max_batch_size=4))
    assert _wrong(harness, IN=np.zeros((3, 1), np.float32)) == snapshot


def test_an_output_of_strings(execute, snapshot):
    assert _wrong(execute(_model("", OUT="np.zeros(1)"), configuration(outputs="STRING 1")), IN=[1]) == snapshot


def test_a_scalar_is_an_array_of_one_as_in_the_server(execute):
    harness = execute(_model("", OUT="np.array(3, np.float32)"), configuration(outputs="FP32 1"))
    assert harness.infer(IN=[1])["OUT"] == 3


def test_an_output_that_nobody_asked_for_is_no_problem(execute):
    harness = execute(
        _model("", A="np.zeros(1, np.float32)", B="np.zeros(1, np.float32)"),
        configuration(outputs={"A": "FP32 1", "B": "FP32 1"}),
    )
    assert list(harness.infer(IN=[1], outputs=["B"]).outputs) == ["B"]
