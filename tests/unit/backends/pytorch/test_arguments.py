"""Names of inputs and outputs: which argument, and which part of the result."""

import pytest

from pybackend_backends.pytorch.arguments import Argument, Results, match_inputs
from pybackend_sdk.error import TritonModelException

FORWARD = [
    Argument("x"),
    Argument("mask", required=False),
    Argument("scale", required=False, aliases=("KWARGS[scale]",)),
]


@pytest.mark.parametrize(
    ("inputs", "matched"),
    [
        (["scale", "x"], ["scale", "x"]),
        (["x", "KWARGS[scale]"], ["x", "scale"]),
        (["IN__2", "OTHER__0"], ["scale", "x"]),
        (["first", "second"], ["x", "mask"]),
        (["x"], ["x"]),
    ],
)
def test_inputs_are_found_by_name_by_index_or_in_order(inputs, matched):
    assert match_inputs("m", FORWARD, inputs) == dict(zip(inputs, matched, strict=True))


@pytest.mark.parametrize(
    "inputs", [[], ["mask"], ["a", "b", "c", "d"], ["IN__0", "IN__0"], ["IN__0", "IN__3"], ["IN__1"]]
)
def test_inputs_that_do_not_fit_are_refused_with_both_sides(inputs):
    with pytest.raises(TritonModelException) as refused:
        match_inputs("m", FORWARD, inputs)
    assert str(refused.value).startswith("unable to load model 'm', ")
    assert "'x', 'mask' (optional), 'scale' (optional)" in str(refused.value)


@pytest.mark.parametrize(
    ("outputs", "result", "picked"),
    [
        (["b", "a"], {"a": 1, "b": 2}, [2, 1]),
        (["OUT__1", "OUT__0"], (1, 2), [2, 1]),
        (["first", "second"], (1, 2, 3), [1, 2]),
        (["only"], 5, [5]),
        (["texts"], ["a", "b"], [["a", "b"]]),
        (["RESULT[1]"], (1, 2), [2]),
        (["RESULT[a]"], {"a": 1}, [1]),
        (["RESULT"], 5, [5]),
    ],
)
def test_outputs_are_found_by_key_by_index_or_in_order(outputs, result, picked):
    assert Results(outputs).pick(result) == picked


@pytest.mark.parametrize(("outputs", "result"), [(["c"], {"a": 1}), (["OUT__2"], (1, 2)), (["a", "b"], 1)])
def test_outputs_that_are_not_there_are_refused(outputs, result):
    with pytest.raises(TritonModelException, match=f"'{outputs[0]}'"):
        Results(outputs).pick(result)
