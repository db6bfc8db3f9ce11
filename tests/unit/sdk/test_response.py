"""InferenceResponse and the sender's own rules."""

import inspect
import json

import numpy as np
import pytest

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.response import InferenceResponse, ResponseIterator, get_output_tensor_by_name
from pybackend_sdk.response_sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponseSender, ResponseStream
from pybackend_sdk.tensor import Tensor


def _tensor(name="Y"):
    return Tensor(name, np.zeros(1, np.float32))


def test_parameters_have_their_order_and_defaults():
    assert list(inspect.signature(InferenceResponse).parameters) == ["output_tensors", "error", "parameters"]
    response = InferenceResponse()
    assert response.output_tensors() == []
    assert (response.has_error(), response.error(), response.parameters()) == (False, None, "{}")


@pytest.mark.parametrize("sequence", [list, tuple])
def test_outputs(sequence):
    tensors = [_tensor("A"), _tensor("B")]
    response = InferenceResponse(sequence(tensors))
    assert response.output_tensors() == tensors
    assert type(response.output_tensors()) is list


def test_the_models_list_may_be_used_again():
    tensors = [_tensor()]
    response = InferenceResponse(output_tensors=tensors)
    tensors.clear()
    response.output_tensors().clear()
    assert len(response.output_tensors()) == 1


def test_a_subclass_of_tensor_is_a_tensor():
    class Mine(Tensor):
        pass

    tensor = Mine("Y", np.zeros(1))
    assert InferenceResponse([tensor]).output_tensors() == [tensor]


@pytest.mark.parametrize("value", [None, _tensor(), {"Y": _tensor()}, "Y", [np.zeros(1)], ["Y"], 5, {_tensor()}])
def test_outputs_of_other_types(value):
    with pytest.raises(TypeError, match="'output_tensors'"):
        InferenceResponse(output_tensors=value)


@pytest.mark.parametrize("sequence", [list, tuple])
def test_an_output_that_is_none(sequence):
    with pytest.raises(TritonModelException, match=r"^Output tensor for inference response should not be empty\."):
        InferenceResponse(sequence([_tensor(), None]))


def test_errors():
    error = TritonError("it broke", TritonError.NOT_FOUND)
    response = InferenceResponse(error=error)
    assert response.has_error() is True
    assert response.error() is error
    assert InferenceResponse([_tensor()], error).has_error()
    for wrong in ("text", ValueError("x"), 1):
        with pytest.raises(TypeError, match="'error'"):
            InferenceResponse(error=wrong)


def test_parameters_come_back_as_json():
    given = {"text": "x", "number": 1, "flag": False}
    response = InferenceResponse([], None, given)
    given.clear()
    assert json.loads(response.parameters()) == {"text": "x", "number": 1, "flag": False}
    assert InferenceResponse(parameters={}).parameters() == "{}"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({1: 1}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"k": 1.0}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"k": [1]}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        (("k",), "Expect dict, got <class 'tuple'>"),
        ({"k": 2**64}, "Parameter 'k' is 18446744073709551616, which does not fit into 64 bits"),
    ],
)
def test_parameters_that_cannot_be_sent(parameters, text):
    with pytest.raises(TritonModelException, match="^" + text):
        InferenceResponse(parameters=parameters)


def test_look_up_by_name():
    response = InferenceResponse([_tensor("A"), _tensor("B"), _tensor("B")])
    assert get_output_tensor_by_name(response, "B") is response.output_tensors()[1]
    assert get_output_tensor_by_name(response, "C") is None


# --- The sender ---


def _sender():
    sent = []
    stream = ResponseStream(lambda response, final: sent.append((response, final)), lambda: True, decoupled=True)
    return InferenceResponseSender._create(stream), sent


def test_what_a_sender_passes_on():
    sender, sent = _sender()
    response = InferenceResponse()
    sender.send(response)
    sender.send(response=response, flags=0)
    sender.send(response, 1)
    assert sent == [(response, False), (response, False), (response, True)]
    assert sender.is_cancelled() is True


def test_the_final_flag_alone():
    sender, sent = _sender()
    sender.send(flags=TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    assert sent == [(None, True)]


@pytest.mark.parametrize("flags", [2, 3, 2**31])
def test_unknown_flags(flags):
    sender, sent = _sender()
    with pytest.raises(TritonModelException, match=r"^Unable to send response\. Unsupported flag provided\."):
        sender.send(InferenceResponse(), flags)
    assert sent == []


def test_neither_response_nor_flag():
    sender, sent = _sender()
    text = r"^Inference Response object must be provided when the response flags is set to zero\."
    with pytest.raises(TritonModelException, match=text):
        sender.send()
    assert sent == []


def test_arguments_are_checked_before_the_state():
    """The order of the checks is what models see: flags, then a response without flags, then where it would go."""
    nowhere = InferenceResponseSender._create(None)
    for arguments, text in (
        ((None, 2), "Unsupported flag provided"),
        ((None, 0), "must be provided when the response flags is set to zero"),
        ((InferenceResponse(), 0), "no reference to the decoupled state of the model"),
        ((None, 1), "no reference to the decoupled state of the model"),
    ):
        with pytest.raises(TritonModelException, match=text):
            nowhere.send(*arguments)
    assert nowhere.is_cancelled() is False

    closed, sent = _sender()
    closed.send(flags=1)
    for arguments, text in (
        ((None, 2), "Unsupported flag provided"),
        ((None, 0), "must be provided when the response flags is set to zero"),
        ((None, 1), "Response sender has been closed"),
    ):
        with pytest.raises(TritonModelException, match=text):
            closed.send(*arguments)
    assert len(sent) == 1


@pytest.mark.parametrize("arguments", [("response",), (None, "1"), (None, None), (None, -1), ([InferenceResponse()],)])
def test_arguments_of_other_types(arguments):
    with pytest.raises(TypeError):
        _sender()[0].send(*arguments)


@pytest.mark.parametrize("native", [InferenceResponseSender, ResponseIterator])
def test_what_only_a_request_can_make(native):
    with pytest.raises(TypeError, match="No constructor defined"):
        native()


# --- The iterator ---


def _iterator(count):
    left = [InferenceResponse() for _ in range(count)]
    cancelled = []
    everything = list(left)
    iterator = ResponseIterator._create(lambda: left.pop(0) if left else None, lambda: cancelled.append(True))
    return iterator, everything, cancelled


@pytest.mark.parametrize("count", [0, 1, 3])
def test_responses_can_be_iterated_again_and_again(count):
    iterator, responses, _ = _iterator(count)
    assert iter(iterator) is iterator
    for _ in range(3):
        assert list(iterator) == responses


def test_iteration_resumes_where_it_stopped():
    iterator, responses, _ = _iterator(4)
    for response in iterator:
        if response is responses[1]:
            break
    assert list(iterator) == responses[2:]
    assert list(iterator) == responses
    assert next(iter(iterator)) is responses[0]
    assert list(iterator) == responses[1:]


def test_the_end_says_so():
    iterator, _, _ = _iterator(0)
    with pytest.raises(StopIteration, match=r"^Iteration is done for the responses\."):
        next(iterator)


def test_only_what_is_unfinished_can_be_cancelled():
    iterator, _, cancelled = _iterator(2)
    next(iterator)
    iterator.cancel()
    assert cancelled == [True]
    list(iterator)
    iterator.cancel()
    assert cancelled == [True]
