"""What ``execute`` may return. The stub and test harnesses hold every return value against these rules.

On a request's path this stands between the model's code and the way back to the server.
"""

from typing import Any, List, Optional, Sequence

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.request import (
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
)
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


def check_decoupled(returned: Any, instance_name: str) -> None:
    """Hold what ``execute`` returned against the rule of models that answer any number of times.

    Raises:
        TritonModelException: it is not None.
    """
    if returned is not None:
        raise TritonModelException(
            f"Python model '{instance_name}' is using the decoupled mode and the execute function must return None."
        )


def log_rescheduling(requests: "Sequence[InferenceRequest]") -> None:
    """Say of requests that were to be scheduled again that they are not; whoever has their senders may still answer."""
    for request in requests:
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            Logger.log_error(CANNOT_RESCHEDULE)


def rescheduled(requests: "Sequence[InferenceRequest]", responses: "Sequence[Any]") -> List[int]:
    """Places of the requests that are to be executed once more.

    Args:
        requests: what ``execute`` was called with, by a model that is configured to reschedule.
        responses: what :func:`check_returned` gave for them, or Nones.
    """
    return [
        place
        for place, (request, response) in enumerate(zip(requests, responses))
        if response is None and request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    ]


def release_streams(requests: "Sequence[InferenceRequest]") -> None:
    """Let the senders of requests go that are to be executed once more: each execution has senders of its own.

    A request that its sender has answered is not executed again, whatever the model wanted.
    """
    for request in requests:
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            stream = None if request._sender is None else request._sender._stream
            if stream is not None and not stream.settle():
                request._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL


def check_returned(
    returned: Any, requests: "Sequence[InferenceRequest]", reschedules: bool = False
) -> "Sequence[Optional[InferenceResponse]]":
    """Hold what ``execute`` returned against the rules of models that answer once per request.

    Args:
        returned: the value, whatever it is.
        requests: what ``execute`` was called with.
        reschedules: the model is configured to have requests executed once more.

    Returns:
        One response per request, in their order; None for a request that its response sender has answered, or may still
        answer, or that is to be executed once more (see :func:`rescheduled`). A request that was left without any of
        these gets an error, so that no client waits for ever.

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
    for response, request in zip(returned, requests):
        if response is not None:
            _check_response(response, request)
    if reschedules:
        release_streams(requests)
    responses = returned
    for index, request in enumerate(requests):
        sender = request._sender
        if sender is None and returned[index] is not None:
            continue  # what nearly all models do
        if responses is returned:
            responses = list(returned)  # the model's own list stays as it is
        if reschedules and request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            continue
        responses[index] = _left(returned[index], request)
    return responses


def _check_response(response: Any, request: InferenceRequest) -> None:
    if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
        raise TritonModelException(
            "Expected a None object in the execute function return list for reschduled request, found type "
            f"'{type(response)}'."
        )
    if not isinstance(response, InferenceResponse):
        raise TritonModelException(
            f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(response)}'."
        )


def _left(response: Optional[InferenceResponse], request: InferenceRequest) -> Optional[InferenceResponse]:
    """What is to be sent now for a request that has a response sender, or no response."""
    stream = None if request._sender is None else request._sender._stream
    if response is not None:
        return response if stream is None or stream.settle() else None  # the first answer stands
    if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
        Logger.log_error(CANNOT_RESCHEDULE)
        return _unanswered(CANNOT_RESCHEDULE) if stream is None or stream.settle() else None
    return _unanswered(NOTHING_RETURNED) if stream is None else None


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
