"""What ``execute`` may return. The stub and test harnesses hold every return value against these rules.

On a request's path this stands between the model's code and the way back to the server.
"""

from typing import Any, List, Sequence

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

NOTHING_RETURNED = (
    "The model returned no response for this request: 'execute' must return a list with one InferenceResponse for "
    "each request, in the order of the requests."
)
CANNOT_RESCHEDULE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)

_FEW = 8


def check_returned(returned: Any, requests: "Sequence[InferenceRequest]") -> List[InferenceResponse]:
    """Hold what ``execute`` returned against the rules of models that answer once per request.

    Args:
        returned: the value, whatever it is.
        requests: what ``execute`` was called with.

    Returns:
        One response per request, in their order. A request that was left without one (None instead of the list or of
        an element) gets an error, so that no client waits for ever.

    Raises:
        TritonModelException: no list, not as many elements as requests, an element that is no response, or a response
            for a request that was to be scheduled again. The whole batch fails with it.
    """
    if returned is None:
        returned = [None] * len(requests)
    if not isinstance(returned, list):
        raise TritonModelException(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise TritonModelException(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    responses = returned
    for index, response in enumerate(returned):
        rescheduled = requests[index]._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
        if response is None:
            if responses is returned:
                responses = list(returned)  # the model's own list stays as it is
            responses[index] = _unanswered(CANNOT_RESCHEDULE if rescheduled else NOTHING_RETURNED)
        elif rescheduled:
            raise TritonModelException(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
        elif not isinstance(response, InferenceResponse):
            raise TritonModelException(
                f"Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )
    return responses


def _unanswered(message: str) -> InferenceResponse:
    return InferenceResponse(error=TritonError(message))


def prune(response: InferenceResponse, requested_output_names: "Sequence[str]") -> List[Tensor]:
    """The outputs to send: those asked for, in the model's order. The response stays as it is.

    Args:
        response: may answer several requests at once.
        requested_output_names: as they came with the request; empty for all outputs.

    Returns:
        A list that must not be changed: it may be the response's own.
    """
    outputs = response._output_tensors
    names = requested_output_names if len(requested_output_names) <= _FEW else frozenset(requested_output_names)
    for tensor in outputs:
        if tensor._name not in names:
            return [output for output in outputs if output._name in names] if names else outputs
    return outputs
