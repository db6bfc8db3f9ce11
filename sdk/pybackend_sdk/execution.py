"""Rules for the return value of ``execute``; the stub and the test harness both apply them.

On a request's path this module sits between the model's code and the way back to the server.
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


class Unanswered(TritonError):
    """The error of a request that the model has left without an answer."""


def check_decoupled(returned: Any, instance_name: str) -> None:
    """Check the return value of a decoupled model's ``execute``."""
    if returned is not None:
        raise TritonModelException(
            f"Python model '{instance_name}' is using the decoupled mode and the execute function must return None."
        )


def log_rescheduling(requests: "Sequence[InferenceRequest]") -> None:
    """Log an error for each request that asked to be rescheduled but cannot be; its sender may still answer it."""
    for request in requests:
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            Logger.log_error(CANNOT_RESCHEDULE)


def rescheduled(requests: "Sequence[InferenceRequest]", responses: "Sequence[Any]") -> List[int]:
    """Return the indexes of the requests to execute again.

    The responses are the result of :func:`check_returned` for these requests, or Nones.
    """
    return [
        place
        for place, (request, response) in enumerate(zip(requests, responses))
        if response is None and request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    ]


def release_streams(requests: "Sequence[InferenceRequest]") -> None:
    """Settle the response senders of requests that will be executed again: each execution has its own senders.

    A request that its sender has already answered is not executed again, whatever its release flags say.
    """
    for request in requests:
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            stream = None if request._sender is None else request._sender._stream
            if stream is not None and not stream.settle():
                request._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL


def check_returned(
    returned: Any, requests: "Sequence[InferenceRequest]", reschedules: bool = False
) -> "Sequence[Optional[InferenceResponse]]":
    """Check the return value of ``execute`` in a model that answers each request once.

    Returns one response per request, in the order of the requests. None stands for a request that its response sender
    has answered or may still answer, or that will be executed again (see :func:`rescheduled`). Any other request
    without a response gets an error, so that no client waits for ever. If the value is wrong as a whole, or has an
    element that is, the whole batch fails.
    """
    if type(returned) is list and len(returned) == len(requests):
        for response, request in zip(returned, requests):
            if (
                type(response) is not InferenceResponse
                or request._sender is not None
                or request._release_flags != TRITONSERVER_REQUEST_RELEASE_ALL
            ):
                break
        else:
            return returned  # the usual case
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
    responses = list(returned)  # leave the model's own list unchanged
    for index, request in enumerate(requests):
        if not (reschedules and request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
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
    """Return the response to send now for a request with a response sender or without a response."""
    stream = None if request._sender is None else request._sender._stream
    if response is not None:
        return response if stream is None or stream.settle() else None  # the first answer stands
    if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
        Logger.log_error(CANNOT_RESCHEDULE)
        return _unanswered(CANNOT_RESCHEDULE) if stream is None or stream.settle() else None
    return _unanswered(NOTHING_RETURNED) if stream is None else None


def _unanswered(message: str) -> InferenceResponse:
    return InferenceResponse(error=Unanswered(message))


def prune(response: InferenceResponse, requested_output_names: "Sequence[str]") -> List[Tensor]:
    """Return the outputs to send: the requested ones, in the model's order; no names stand for all.

    The response may answer several requests at once. Without requested names, all outputs are sent. Callers must not
    change the list: it may belong to the response.
    """
    outputs = response._output_tensors
    names = requested_output_names if len(requested_output_names) <= _FEW else frozenset(requested_output_names)
    for tensor in outputs:
        if tensor._name not in names:
            return [output for output in outputs if output._name in names] if names else outputs
    return outputs
