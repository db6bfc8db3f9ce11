"""Tensors, requests, responses and errors as plain objects, which cross from one process of a test to another."""

import traceback
from typing import Any, Optional, Tuple

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_sdk.testing import errors
from pybackend_sdk.testing.exchange import Arrival
from pybackend_sdk.testing.inputs import wire_bytes
from pybackend_sdk.testing.model_table import CallRefused
from pybackend_wire.errors import ErrorCode

Plain = Tuple[Any, ...]
"""Plain objects only: tuples, lists, dicts, text, numbers, bytes."""


class ModelException(Exception):
    """An exception of a model in another process. The text is its traceback there."""


def plain_tensor(tensor: Tensor) -> Plain:
    """A tensor's name, datatype, shape and bytes."""
    return tensor.name(), tensor._datatype, [int(size) for size in tensor.shape()], bytes(wire_bytes(tensor))


def tensor_from_plain(plain: Plain) -> Tensor:
    """A tensor with its own memory, which a model may write to."""
    name, datatype, shape, data = plain
    return Tensor._from_wire(name, datatype, shape, bytearray(data))


def plain_response(response: Optional[InferenceResponse]) -> Optional[Plain]:
    """A response's tensors, parameters and error."""
    if response is None:
        return None
    error = response.error()
    if error is not None:
        return [], None, (error.message(), int(error.code()))
    return [plain_tensor(tensor) for tensor in response.output_tensors()], response._parameters, None


def response_from_plain(plain: Optional[Plain]) -> Optional[InferenceResponse]:
    """The response of :func:`plain_response`."""
    if plain is None:
        return None
    tensors, parameters, error = plain
    if error is not None:
        return InferenceResponse(error=TritonError(error[0], ErrorCode(error[1])))
    response = InferenceResponse([tensor_from_plain(tensor) for tensor in tensors])
    response._parameters = parameters
    return response


def plain_arrival(arrival: Arrival) -> Plain:
    """An arrival; an exception becomes the text of its traceback."""
    raised = None if arrival.exception is None else traceback_of(arrival.exception)
    return plain_response(arrival.response), arrival.final, list(arrival.dropped), raised


def arrival_from_plain(plain: Plain) -> Arrival:
    """The arrival of :func:`plain_arrival`."""
    response, final, dropped, raised = plain
    exception = None if raised is None else ModelException(raised)
    return Arrival(response_from_plain(response), final, dropped, exception)


def plain_call(request: InferenceRequest) -> Plain:
    """A model's request to another model."""
    target = request._target
    assert target is not None
    return (
        target.model_name,
        target.model_version,
        [plain_tensor(tensor) for tensor in request.inputs()],
        list(request._requested_output_names),
        request.request_id(),
        request.correlation_id(),
        request.flags(),
        request.timeout(),
        request._parameters,
    )


def call_from_plain(plain: Plain) -> InferenceRequest:
    """The request of :func:`plain_call`."""
    name, version, inputs, outputs, request_id, correlation_id, flags, timeout_us, parameters = plain
    return InferenceRequest(
        request_id,
        correlation_id,
        [tensor_from_plain(tensor) for tensor in inputs],
        outputs,
        name,
        version,
        flags,
        timeout_us,
        parameters=parameters,
    )


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception, as Python prints it."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()


def plain_error(error: BaseException) -> Plain:
    """An exception's kind, text, code and the traceback of its cause."""
    code = int(error.code) if isinstance(error, CallRefused) else 0
    cause = None if error.__cause__ is None else traceback_of(error.__cause__)
    known = isinstance(error, (errors.HarnessError, TritonModelException, CallRefused))
    text = str(error) if known else traceback_of(error)
    return type(error).__name__ if known else "", text, code, cause


def error_from_plain(plain: Plain) -> BaseException:
    """The exception of :func:`plain_error`; one of another kind becomes a :class:`ModelException`."""
    kind, text, code, cause = plain
    error: BaseException
    if kind == "CallRefused":
        error = CallRefused(text, ErrorCode(code))
    elif kind == "TritonModelException":
        error = TritonModelException(text)
    elif kind:
        error = getattr(errors, kind)(text)
    else:
        error = ModelException(text)
    error.__cause__ = None if cause is None else ModelException(cause)
    return error
