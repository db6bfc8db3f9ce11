"""The form in which clients get outputs: reshaped as configured, and checked where the model asks for that."""

import pytest

from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.instance.output_check import output_form
from pybackend.modelconfig.signature import ModelSignature, TensorSignature

NOTHING_HIDDEN = frozenset()


def signature(*, reshape=None):
    return ModelSignature("m", 0, {}, {"OUT": TensorSignature("OUT", "FP32", (2, 2), reshape=reshape)})


def response(name="OUT", datatype="FP32", shape=(2, 2)):
    """A response, and a list that tells whether its memory was given back."""
    given_back = []
    outputs = [OutputTensor(name, datatype, shape, b"")]
    made = InferenceResponse("m", "1", outputs=outputs, on_release=lambda: given_back.append(True))
    return made, given_back


def test_outputs_that_are_neither_reshaped_nor_checked_need_no_form():
    assert output_form(signature(), NOTHING_HIDDEN, validates=False) is None


@pytest.mark.parametrize("validates", [False, True])
def test_clients_get_outputs_in_the_configured_shape(validates):
    made, given_back = response(shape=(4,))
    output_form(signature(reshape=(4,)), NOTHING_HIDDEN, validates=validates).give_to(made, InferenceRequest("m"))
    assert (made.error, list(made.outputs[0].shape), given_back) == (None, [2, 2], [])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": "OTHER"}, "'OTHER', which its configuration does not have"),
        ({"datatype": "INT8"}, "'OUT' as INT8, but its configuration says FP32"),
        ({"shape": (2, 3)}, r"'OUT' with shape \[2, 3\], but its configuration says \[2, 2\]"),
    ],
)
def test_a_wrong_output_makes_the_response_an_error_that_holds_no_memory(wrong, text):
    made, given_back = response(**wrong)
    output_form(signature(), NOTHING_HIDDEN, validates=True).give_to(made, InferenceRequest("m"))
    with pytest.raises(Exception, match=text):
        raise made.error
    assert given_back == [True]


def test_outputs_that_clients_never_see_are_not_checked(snapshot):
    made, _ = response(name="STATE")
    output_form(signature(), frozenset({"STATE"}), validates=True, may_be_missing=True).give_to(
        made, InferenceRequest("m")
    )
    assert made.error is None
    output_form(signature(), frozenset({"STATE"}), validates=True).give_to(made, InferenceRequest("m"))
    assert str(made.error) == snapshot
