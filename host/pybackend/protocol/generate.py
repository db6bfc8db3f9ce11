"""The generate extension: one JSON object whose members are a model's inputs and parameters, and one object per response.

Used by the routes ``generate`` and ``generate_stream``. Values take their datatype and shape from the model's signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.infer_document import check_values
from pybackend.protocol.infer_response import encode_document, json_values
from pybackend.protocol.json_document import parse_document, type_error
from pybackend.protocol.json_tensor import encode_values
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.metadata import encode_error
from pybackend.protocol.refusals import invalid
from pybackend.protocol.request_parameters import custom_parameter

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Bound of a request's body, and of the tensors of one response. Both are converted in one go: at most about 0.2 s."""

PARAMETERS = "parameters"

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_value = msgspec.json.Decoder().decode


def parse_generate(body: bytes, signature: ModelSignature, model_version: str, limits: BodyLimits) -> InferenceRequest:
    """The request in a body. It is not validated against the model yet.

    Args:
        body: a JSON object.
        signature: the model's.
        model_version: version to store in the request.
        limits: bounds of the body and of the tensors in it.

    Raises:
        InferenceError: INTERNAL for JSON syntax and types, INVALID_ARG for all other mistakes.
    """
    limits.check_json(len(body))
    if PARAMETERS in signature.inputs:
        raise invalid(
            "Keyword 'parameters' for nested schema also given as input tensor name. Rename the input, or use /infer"
        )
    request = InferenceRequest(signature.model_name, model_version)
    custom: dict[str, ParameterValue] = {}
    for name, text in _flat_members(body):
        expected = signature.inputs.get(name)
        if expected is not None:
            if any(tensor.name == name for tensor in request.inputs):
                raise invalid(f"input '{name}' already exists in request")
            request.inputs.append(_input(expected, text, signature, len(body), limits))
            continue
        value = _decoded(text)
        if name == "id" and type(value) is str:
            request.id = value
        custom[name] = custom_parameter(name, value)
    request.parameters = custom or None
    return request


def _flat_members(body: bytes) -> Iterator[tuple[str, Raw]]:
    """The members of the object, and those of its member ``parameters``."""
    for name, text in _object(body).items():
        if name != PARAMETERS:
            yield name, text
            continue
        try:
            nested = _members(text)
        except msgspec.ValidationError:
            raise InferenceError(
                f"Expected JSON object for keyword: '{PARAMETERS}': its members become inputs and parameters like those "
                "beside it"
            ) from None
        yield from nested.items()


def _object(body: bytes) -> dict[str, Raw]:
    try:
        return _members(body)
    except msgspec.ValidationError:
        raise InferenceError("Expected a JSON object: its members are the model's inputs and parameters") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        parse_document(body)  # finds the mistake and its place
        raise InferenceError("failed to parse the request JSON buffer: NaN and infinity are no JSON") from None


def _decoded(text: Raw) -> Any:
    return _value(text) if bytes(memoryview(text)[:1]) not in {b"[", b"{"} else []


def _input(
    expected: TensorSignature, text: Raw, signature: ModelSignature, body_bytes: int, limits: BodyLimits
) -> InputTensor:
    value = _value(text)
    values = value if type(value) is list else [value]
    check_values(expected.datatype, values)
    try:
        data = encode_values(expected.datatype, values)
    except UnicodeEncodeError:
        raise type_error(expected.name, "invalid Unicode as string") from None
    if len(data) > limits.max_input_size_bytes:
        raise invalid(
            f"request size of {body_bytes} bytes with input '{expected.name}' of size {len(data)} bytes exceeds the "
            f"maximum allowed input size of {limits.max_input_size_bytes}. Use --http-max-input-size to increase the "
            "limit."
        )
    dims = (-1, *expected.dims) if signature.max_batch_size else expected.dims
    return InputTensor(expected.name, expected.datatype, _shape(expected.name, dims, len(values)), data)


def _shape(name: str, dims: tuple[int, ...], count: int) -> list[int]:
    """The dimensions of so many elements: fixed ones are kept, the last variable one takes what they leave over."""
    shape, left = [], count
    for dim in reversed(dims):
        size = left if dim == -1 else dim
        if size == 0 or left % size:
            left = 0
            break
        shape.append(size)
        left //= size
    if left != 1:
        text = f"[{','.join(map(str, dims))}]"
        raise invalid(
            f"The schema can not convert input '{name}' to tensor with proper shape: {count} elements do not fit {text}"
        )
    return shape[::-1]


def generate_document(response: InferenceResponse) -> bytes:
    """The JSON object for one response, or for the error in it; members are sorted by name.

    Raises:
        InferenceError: an output cannot be sent as JSON, or the outputs are too large.
    """
    if response.error is not None:
        return encode_error(response.error.message)
    nbytes = sum(len(tensor.data) for tensor in response.outputs)
    if nbytes > MAX_BODY_BYTES:
        raise InferenceError(
            f"the model's outputs have {nbytes} bytes, and generate sends at most {MAX_BODY_BYTES}: use /infer with binary "
            "tensors",
            ErrorCode.UNSUPPORTED,
        )
    members: dict[str, Any] = dict(response.parameters or {})
    for tensor in response.outputs:
        values = json_values(tensor, tensor.data)
        members[tensor.name] = values[0] if len(values) == 1 else values
    members["model_name"], members["model_version"] = response.model_name, response.model_version
    if response.id:
        members["id"] = response.id
    return encode_document(dict(sorted(members.items())), may_hold_nan=True)
