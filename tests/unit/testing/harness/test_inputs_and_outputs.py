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


def _refused(harness, starts, contains="", **inputs):
    with pytest.raises(InputError) as caught:
        harness.infer(inputs)
    message = str(caught.value)
    assert message.startswith(starts), message
    assert contains in message, message


def test_names(execute):
    harness = execute(PASS, configuration({**TWO, "EXTRA": "INT32 1 optional"}))
    four = np.zeros(4, np.float32)
    known = "Its inputs are LEFT (FP32 [4]), RIGHT (FP32 [4]), EXTRA (INT32 [1], optional)."
    _refused(
        harness, "unexpected inference input 'RIHGT' for model 'm'. Did you mean 'RIGHT'?", known, LEFT=four, RIHGT=four
    )
    _refused(harness, "unexpected inference input 'left' for model 'm'. Did you mean 'LEFT'?", left=four, RIGHT=four)
    _refused(harness, "unexpected inference input 'x' for model 'm'. Its inputs are LEFT", x=four)
    _refused(
        harness,
        "expected number of inputs between 2 and 3 but got 1 inputs for model 'm'. Got input(s) ['LEFT'], but missing "
        "required input(s) ['RIGHT']. Please provide all required input(s).",
        known,
        LEFT=four,
    )
    assert harness.infer(LEFT=four, RIGHT=four, EXTRA=None)["OUT"].shape == (4,)
    assert harness.infer(LEFT=four, RIGHT=four, EXTRA=[1])["OUT"].shape == (4,)


def test_all_inputs_missing(execute):
    harness = execute(PASS, configuration(TWO))
    _refused(
        harness, "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s)"
    )


def test_names_of_outputs(execute):
    harness = execute(PASS)
    with pytest.raises(InputError, match=r"unexpected inference output 'OT' for model 'm'\. Did you mean 'OUT'\?"):
        harness.infer(IN=[1], outputs=["OT"])


@pytest.mark.parametrize(
    ("configured", "value", "starts", "advice"),
    [
        ("FP32", np.zeros(1), "inference input 'IN' data-type is 'FP64', but model 'm' expects 'FP32'", "array.astype(numpy.float32)"),
        ("INT64", np.zeros(1, np.int32), "inference input 'IN' data-type is 'INT32', but model 'm'", "array.astype(numpy.int64)"),
        ("STRING", np.zeros(1), "inference input 'IN' data-type is 'FP64', but model 'm' expects 'BYTES'", "dtype=object"),
        ("FP32", np.array(["1"]), "inference input 'IN' data-type is 'BYTES', but model 'm'", "an array of dtype numpy.float32"),
        ("FP32", np.zeros(1, complex), "input 'IN' for model 'm' has dtype complex128, which has no datatype", "numpy.float32"),
        ("BF16", np.zeros(1, np.float32), "inference input 'IN' data-type is 'FP32', but model 'm'", "the bits as an array of numpy.uint16"),
        ("INT32", [1.5], "input 'IN' for model 'm': [1.5] does not fit INT32 without loss", ""),
        ("UINT8", [256], "input 'IN' for model 'm': [256] does not fit UINT8 without loss", ""),
        ("UINT8", [-1], "input 'IN' for model 'm': [-1] does not fit UINT8 without loss", ""),
        ("BOOL", [1], "input 'IN' for model 'm': [1] does not fit BOOL without loss", ""),
        ("FP32", ["1"], "input 'IN' for model 'm': ['1'] does not fit FP32 without loss", ""),
        ("FP32", pb_utils.Tensor("IN", np.zeros(1)), "inference input 'IN' data-type is 'FP64', but model 'm'", ""),
    ],
)  # fmt: skip
def test_datatypes(execute, configured, value, starts, advice):
    _refused(execute(PASS, configuration(configured + " -1")), starts, advice, IN=value)


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


def test_shapes(execute):
    harness = execute(PASS, configuration("FP32 2 -1"))
    wrong = "unexpected shape for input 'IN' for model 'm'. Expected [2,-1], got "
    _refused(harness, wrong + "[3,4]. Dimension 0 is 3, not 2.", IN=np.zeros((3, 4), np.float32))
    _refused(harness, wrong + "[2]. It has 1 dimension, not 2.", IN=np.zeros(2, np.float32))
    _refused(harness, wrong + "[1,2,4]. It has 3 dimensions, not 2.", IN=np.zeros((1, 2, 4), np.float32))
    _refused(harness, wrong + "[]. It has 0 dimensions, not 2.", IN=np.float32(1))


def test_batches(execute):
    harness = execute(PASS, configuration(TWO, "FP32 4", max_batch_size=8))
    four = np.zeros(4, np.float32)
    _refused(
        harness,
        "unexpected shape for input 'LEFT' for model 'm'. Expected [-1,4], got [4]. It has 1 dimension, not 2: "
        "max_batch_size is 8, so every tensor has a batch dimension in front of its dims: array[numpy.newaxis] is a batch of "
        "one.",
        LEFT=four,
        RIGHT=four,
    )
    _refused(
        harness,
        "input 'RIGHT' batch size does not match other inputs for 'm': its first dimension is 3, that of the inputs before "
        "it 2",
        LEFT=np.zeros((2, 4), np.float32),
        RIGHT=np.zeros((3, 4), np.float32),
    )
    _refused(
        harness,
        "inference request batch-size must be <= 8 for 'm': the first dimension of input 'LEFT' is 9",
        LEFT=np.zeros((9, 4), np.float32),
        RIGHT=np.zeros((9, 4), np.float32),
    )
    _refused(
        harness,
        "input 'LEFT' has no shape but model requires batch dimension for 'm': max_batch_size is 8",
        LEFT=np.float32(1),
        RIGHT=four,
    )
    batch = np.zeros((8, 4), np.float32)
    assert harness.infer(LEFT=batch, RIGHT=batch)["OUT"].shape == (8, 4)


def test_parameters_of_requests(execute):
    harness = execute(PASS)
    with pytest.raises(
        InputError, match="parameter 'list' of a request is list: clients can send bool, int, float and str"
    ):
        harness.infer(IN=[1], parameters={"list": [1]})


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


def _wrong(harness, *texts, **inputs):
    with pytest.raises(OutputError) as caught:
        harness.infer(inputs)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(texts) + 1, lines
    for index, text in enumerate(texts):
        assert lines[index].startswith(text), lines[index]
    assert "VALIDATE_OUTPUTS" in lines[-1]
    assert "strict=False" in lines[-1]


def _model(expression, **tensors):
    made = ", ".join(f'pb_utils.Tensor("{name}", {array})' for name, array in tensors.items())
    return f"return [pb_utils.InferenceResponse([{made}])]  # {expression}"


def test_output_names(execute):
    harness = execute(_model("", OTU="np.zeros(1, np.float32)"))
    _wrong(
        harness,
        "model 'm' returned output 'OTU', which its configuration does not have, so clients never receive it. Did you mean "
        "'OUT'? Its outputs are OUT (FP32 [-1]).",
        "model 'm' returned no output 'OUT', although the request wants it; it returned ['OTU'].",
        IN=[1],
    )


def test_several_outputs_of_one_name(execute):
    body = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.float32([n])) for n in (1, 2, 3)])]"
    _wrong(
        execute(body),
        "model 'm' returned output 'OUT' 3 times in one response: whatever takes one output takes the first.",
        IN=[1],
    )


def test_output_datatype_and_shape(execute):
    harness = execute(_model("", OUT="np.zeros((2, 3))"), configuration(outputs="FP32 2 2"))
    _wrong(
        harness,
        "model 'm' returned output 'OUT' as FP64, but its configuration says FP32: make it from array.astype(numpy.float32).",
        "model 'm' returned output 'OUT' with shape [2, 3], but its configuration says [2, 2]. Dimension 1 is 3, not 2.",
        IN=[1],
    )


def test_output_batch(execute):
    harness = execute(_model("", OUT="np.zeros(2, np.float32)"), configuration(outputs="FP32 2", max_batch_size=4))
    _wrong(
        harness,
        "model 'm' returned output 'OUT' with shape [2], but its configuration says [3, 2]. It has 1 dimension, not 2: "
        "max_batch_size is 4",
        IN=np.zeros((3, 1), np.float32),
    )


def test_an_output_of_strings(execute):
    harness = execute(_model("", OUT="np.zeros(1)"), configuration(outputs="STRING 1"))
    _wrong(harness, "model 'm' returned output 'OUT' as FP64, but its configuration says BYTES: make it from", IN=[1])


def test_a_scalar_is_an_array_of_one_as_in_the_server(execute):
    harness = execute(_model("", OUT="np.array(3, np.float32)"), configuration(outputs="FP32 1"))
    assert harness.infer(IN=[1])["OUT"] == 3


def test_an_output_that_nobody_asked_for_is_no_problem(execute):
    harness = execute(
        _model("", A="np.zeros(1, np.float32)", B="np.zeros(1, np.float32)"),
        configuration(outputs={"A": "FP32 1", "B": "FP32 1"}),
    )
    assert list(harness.infer(IN=[1], outputs=["B"]).outputs) == ["B"]
