"""Requests to another server and its responses, as messages: the other end of :mod:`request` and :mod:`response`."""

from __future__ import annotations

from typing import Any

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.protocol.grpc.request import EMPTY_FINAL
from pybackend.protocol.grpc.response import FINAL, put_parameters
from pybackend.protocol.grpc.status import STATUS

CODES = {status.name: code for code, status in STATUS.items()}
"""The kind of failure by the name of gRPC's status."""


def encode_request(request: InferenceRequest, *, streams: bool) -> bytes:
    """A ``ModelInferRequest``; ``streams``: it says that the last response may be empty."""
    message = message_class("inference.ModelInferRequest")(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.data or b""))
    for name in request.requested_outputs:
        message.outputs.add(name=name)
    put_parameters(message, _parameters(request, streams=streams), "request")
    written: bytes = message.SerializeToString()
    return written


def _parameters(request: InferenceRequest, *, streams: bool) -> dict[str, ParameterValue]:
    found = dict(request.parameters or {})
    if request.timeout_us:
        found["timeout"] = request.timeout_us
    if streams:
        found[EMPTY_FINAL] = True
    return found


def decode_response(data: bytes) -> InferenceResponse:
    """The response in a ``ModelInferResponse`` that has its tensors as bytes."""
    return _response(message_class("inference.ModelInferResponse").FromString(data))


def decode_stream_response(data: bytes) -> InferenceResponse:
    """The response in a ``ModelStreamInferResponse``."""
    message = message_class("inference.ModelStreamInferResponse").FromString(data)
    response = _response(message.infer_response)
    # Without the parameter, an error is one of the server, not of the model: nothing follows.
    is_refusal = FINAL not in message.infer_response.parameters
    response.final = message.infer_response.parameters[FINAL].bool_param
    response.empty = response.final and not response.outputs
    if message.error_message:
        response.error, response.empty = InferenceError(message.error_message), False
        response.final = response.final or is_refusal
    return response


def encode_question(model: str, version: str) -> bytes:
    """A ``ModelReadyRequest``."""
    written: bytes = message_class("inference.ModelReadyRequest")(name=model, version=version).SerializeToString()
    return written


def decode_readiness(data: bytes) -> bool:
    """The verdict in a ``ModelReadyResponse``."""
    return bool(message_class("inference.ModelReadyResponse").FromString(data).ready)


def _response(message: Any) -> InferenceResponse:
    outputs = [
        OutputTensor(each.name, each.datatype, tuple(each.shape), data)
        for each, data in zip(message.outputs, message.raw_output_contents, strict=True)
    ]
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in message.parameters.items()
        if name != FINAL
    }
    return InferenceResponse(message.model_name, message.model_version, message.id, outputs, parameters or None)
