"""What execute may return."""

import re

import numpy as np
import pytest

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.execution import check_decoupled, check_returned, prune
from pybackend_sdk.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import InferenceResponseSender, ResponseStream
from pybackend_sdk.tensor import Tensor


def _requests(count=2):
    return [InferenceRequest._from_wire("", 0, [], ("A", "B"), 0, 0, None, key) for key in range(1, count + 1)]


def _refused(returned, text, requests=None):
    with pytest.raises(TritonModelException) as caught:
        check_returned(returned, _requests() if requests is None else requests)
    assert str(caught.value) == text


def test_a_list_of_responses_is_itself():
    responses = [InferenceResponse(), InferenceResponse(error=TritonError("x"))]
    assert check_returned(responses, _requests()) is responses


def test_a_subclass_of_list_or_response_will_do():
    class Mine(InferenceResponse):
        pass

    class Responses(list):
        pass

    assert check_returned(Responses([Mine()]), _requests(1))


def test_one_response_may_answer_several_requests():
    response = InferenceResponse()
    assert check_returned([response, response], _requests()) == [response, response]


@pytest.mark.parametrize(
    "returned",
    [(InferenceResponse(), InferenceResponse()), {}, "text", 5, InferenceResponse(), iter([]), (x for x in ())],
    ids=lambda value: type(value).__name__,
)
def test_anything_but_a_list(returned):
    _refused(returned, f"Expected a list in the execute return, found type '{type(returned)}'.")


def test_the_type_is_shown_as_python_shows_it():
    _refused((), "Expected a list in the execute return, found type '<class 'tuple'>'.")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_another_length(count):
    _refused(
        [InferenceResponse()] * count,
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        f"InferenceRequest(s) size is:2, and InferenceResponse(s) size is:{count}\n",
    )


@pytest.mark.parametrize(
    "element", ["text", 1, Tensor("A", np.zeros(1)), [InferenceResponse()]], ids=lambda element: type(element).__name__
)
def test_an_element_of_another_type(element):
    _refused(
        [InferenceResponse(), element],
        f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(element)}'.",
    )


def test_length_is_checked_before_elements():
    with pytest.raises(TritonModelException, match=r"^Number of InferenceResponse objects"):
        check_returned(["text"], _requests())


def test_a_response_for_a_request_that_was_to_be_rescheduled():
    requests = _requests()
    requests[1].set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    for element, shown in ((InferenceResponse(), "c_python_backend_utils.InferenceResponse"), ("text", "str")):
        _refused(
            [InferenceResponse(), element],
            "Expected a None object in the execute function return list for reschduled request, found type "
            f"'<class '{shown}'>'.",
            requests,
        )


EXPECTED_RESPONSE = "Expected an 'InferenceResponse' object in the execute function return list, found type '{}'."
NOTHING = re.compile("The model returned no response for this request: 'execute' must return a list")


def _assert_unanswered(response, pattern=NOTHING):
    assert response.has_error()
    assert response.error().code() is TritonError.INTERNAL
    assert pattern.match(response.error().message())


def test_none_answers_every_request_with_an_error():
    responses = check_returned(None, _requests(3))
    assert len(responses) == 3
    for response in responses:
        _assert_unanswered(response)


def test_an_element_none_answers_that_request_with_an_error():
    answered = InferenceResponse()
    returned = [None, answered]
    responses = check_returned(returned, _requests())
    _assert_unanswered(responses[0])
    assert responses[1] is answered
    assert returned == [None, answered]


@pytest.mark.parametrize("returned", [None, [None, None]])
def test_a_request_that_cannot_be_rescheduled_is_told_so(returned):
    requests = _requests()
    requests[0].set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    responses = check_returned(returned, requests)
    _assert_unanswered(
        responses[0], re.compile("Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is")
    )
    _assert_unanswered(responses[1])


# --- Requests that have a response sender ---


def _with_sender(request):
    """Give a request its sender, as ``get_response_sender()`` does; what it sends is in the list."""
    sent = []
    stream = ResponseStream(lambda response, final: sent.append((response, final)), lambda: False, decoupled=False)
    request._sender = InferenceResponseSender._create(stream)
    return request._sender, sent


def test_a_request_that_its_sender_has_answered_or_may_answer_gets_nothing_now():
    requests = _requests(3)
    answered, _ = _with_sender(requests[0])
    answered.send(InferenceResponse(), 1)
    _with_sender(requests[1])
    response = InferenceResponse()
    assert check_returned([None, None, response], requests) == [None, None, response]


def test_none_from_a_model_that_answers_all_requests_by_senders():
    requests = _requests()
    _with_sender(requests[0])
    responses = check_returned(None, requests)
    assert responses[0] is None
    _assert_unanswered(responses[1])


def test_a_sender_can_answer_after_execute_returned_none():
    (request,) = _requests(1)
    sender, sent = _with_sender(request)
    assert check_returned([None], [request]) == [None]
    response = InferenceResponse()
    sender.send(response, 1)
    assert sent == [(response, True)]


def test_of_two_answers_the_senders_stands():
    (request,) = _requests(1)
    sender, sent = _with_sender(request)
    first = InferenceResponse()
    sender.send(first)
    assert check_returned([InferenceResponse()], [request]) == [None]
    assert sent == [(first, True)]


def test_after_a_response_was_returned_the_sender_is_refused():
    (request,) = _requests(1)
    sender, sent = _with_sender(request)
    response = InferenceResponse()
    returned = [response]
    assert check_returned(returned, [request]) == [response]
    with pytest.raises(
        TritonModelException,
        match=r"^Unable to send response\. Non-decoupled model cannot send more than one response\.",
    ):
        sender.send(InferenceResponse())
    assert sent == []
    assert returned == [response]


def test_a_refused_list_leaves_senders_alone():
    """The batch fails with it, and whoever reports that settles what is still open."""
    requests = _requests()
    _, sent = _with_sender(requests[0])
    _refused([InferenceResponse(), "text"], EXPECTED_RESPONSE.format("<class 'str'>"), requests)
    assert not requests[0]._sender._stream.closed
    assert sent == []


def test_a_rescheduled_request_with_a_sender_is_answered_once():
    (request,) = _requests(1)
    _, sent = _with_sender(request)
    request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    responses = check_returned([None], [request])
    assert "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" in responses[0].error().message()
    request._sender = None
    assert sent == []


def test_a_rescheduled_request_that_its_sender_has_answered():
    (request,) = _requests(1)
    sender, sent = _with_sender(request)
    sender.send(InferenceResponse(), 1)
    request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    assert check_returned([None], [request]) == [None]
    assert len(sent) == 1


# --- Models that answer any number of times ---


def test_a_decoupled_model_returns_none():
    check_decoupled(None, "m_0_0")


@pytest.mark.parametrize("returned", [[], [None], [InferenceResponse()], (), 0, False, "text"])
def test_anything_else_from_a_decoupled_model(returned):
    with pytest.raises(TritonModelException) as caught:
        check_decoupled(returned, "m_0_0")
    assert (
        str(caught.value)
        == "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."
    )


def _response(*names):
    return InferenceResponse([Tensor(name, np.zeros(1)) for name in names])


@pytest.mark.parametrize(
    ("names", "requested", "sent"),
    [
        (["A", "B"], ("A", "B"), ["A", "B"]),
        (["B", "A"], ("A", "B"), ["B", "A"]),
        (["A", "B"], ("B",), ["B"]),
        (["A", "B"], (), ["A", "B"]),
        (["A"], ("A", "B"), ["A"]),
        (["A", "B"], ("C",), []),
        ([], ("A",), []),
        ([f"O{i}" for i in range(20)], tuple(f"O{i}" for i in range(0, 20, 2)), [f"O{i}" for i in range(0, 20, 2)]),
    ],
)
def test_only_requested_outputs_are_sent(names, requested, sent):
    response = _response(*names)
    assert [tensor.name() for tensor in prune(response, requested)] == sent
    assert [tensor.name() for tensor in response.output_tensors()] == names


def test_nothing_is_copied_where_nothing_is_dropped():
    response = _response("A", "B")
    assert prune(response, ("A", "B")) is response._output_tensors
    assert prune(response, ()) is response._output_tensors
