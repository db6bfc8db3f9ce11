"""An infer request's bytes become a plan: the hot path's first station after the HTTP parser.

Where: a front end calls :func:`parse_header_length`, then :func:`parse_infer` with the JSON part (or ``parse_raw``),
then brings the binary tensors' bytes and calls ``validation``. One typed msgspec pass serves what clients usually
send. Whatever it refuses or finds unusual is read again by ``infer_document``, which alone knows the order of checks
and the texts of errors; so nothing here raises but what both ways share.
"""

from __future__ import annotations

import re
from math import prod
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.tensor import InputTensor
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_document import DocumentReader
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON, InferPlan, OutputFormat, output_format
from pybackend.protocol.json_tensor import encode_json
from pybackend.protocol.limits import INT64_MAX, BodyLimits
from pybackend.protocol.request_parameters import apply_parameters

# Larger shapes go the careful way, where every overflow has its text: so many elements of 8 bytes still fit 63 bits.
_PLAIN_COUNT = 2**59

_PLAIN_RANK = 32

_Size = Annotated[int, Meta(ge=0, le=INT64_MAX)]
_DatatypeName = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
    "BF16",
]  # fmt: skip


class _InputParameters(Struct, gc=False):
    binary_data_size: _Size | UnsetType = UNSET
    shared_memory_region: Raw | UnsetType = UNSET


class _Input(Struct, gc=False):
    name: str
    datatype: _DatatypeName
    shape: Annotated[list[_Size], Meta(max_length=_PLAIN_RANK)]
    parameters: _InputParameters | UnsetType = UNSET
    data: Raw | UnsetType = UNSET


class _OutputParameters(Struct, gc=False):
    binary_data: bool | UnsetType = UNSET
    classification: Raw | UnsetType = UNSET
    shared_memory_region: Raw | UnsetType = UNSET


class _Output(Struct, gc=False):
    name: str
    parameters: _OutputParameters | UnsetType = UNSET


class _Document(Struct, gc=False):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, ParameterValue] | UnsetType = UNSET
    outputs: list[_Output] | UnsetType = UNSET


_decode = msgspec.json.Decoder(_Document).decode


class _UnusualError(Exception):
    """The document is not what the fast way is made for; it may still be right."""


def parse_infer(
    header: bytes | memoryview,
    *,
    header_length: int | None,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    available_bytes: int | None = None,
) -> InferPlan:
    """Parse the JSON part of an infer request. The plan is not validated against the model yet.

    Args:
        header: the JSON part; the whole body if the client did not say where it ends.
        header_length: what the client said its length is; None if it said nothing.
        signature: the model's.
        model_version: as the request shall show it.
        limits: bounds of the JSON part and of tensors in it.
        available_bytes: body bytes after the JSON part, where the caller knows: then sizes are checked here, in the
            reference's order; else by ``check_body_size``.

    Returns:
        The plan; inputs sent as JSON have their wire bytes.

    Raises:
        InferenceError: INTERNAL for JSON syntax and types, INVALID_ARG for what is asked wrongly, NOT_FOUND for shared
            memory that nobody registered, UNSUPPORTED for what this server does not do.
    """
    if header_length is not None and len(header) < header_length:
        raise InferenceError(
            f"unexpected size for request JSON, expecting {header_length - len(header)} more bytes",
            ErrorCode.INVALID_ARG,
        )
    limits.check_json(len(header))
    try:
        return _parse_fast(header, header_length is not None, signature, model_version, limits, available_bytes)
    except (_UnusualError, ValueError, OverflowError, RecursionError):
        pass  # msgspec's and Unicode errors are ValueErrors
    reader = DocumentReader(signature, model_version, limits, header_length is not None, available_bytes)
    return reader.read(bytes(header))


def _parse_fast(
    header: bytes | memoryview,
    has_header_length: bool,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    available_bytes: int | None,
) -> InferPlan:
    document = _decode(header)
    request = InferenceRequest(signature.model_name, model_version, id=document.id)
    binary_default = document.parameters is not UNSET and apply_parameters(request, document.parameters)
    tensors = request.inputs
    names: set[str] = set()
    binary_inputs: list[tuple[InputTensor, int]] = []
    binary_bytes = 0
    for item in document.inputs:
        count = prod(item.shape)
        if count > _PLAIN_COUNT:
            raise _UnusualError
        parameters = item.parameters
        tensor = InputTensor(item.name, item.datatype, item.shape)
        if parameters is UNSET or parameters.binary_data_size is UNSET:
            tensor.data = _json_data(item, count, limits)
        elif item.data is UNSET and parameters.shared_memory_region is UNSET:
            size = parameters.binary_data_size
            binary_inputs.append((tensor, size))
            binary_bytes += size
        else:
            raise _UnusualError
        tensors.append(tensor)
        names.add(item.name)
    if len(names) != len(tensors):
        raise _UnusualError
    if binary_bytes and not has_header_length:
        raise _UnusualError
    if available_bytes is not None and available_bytes != binary_bytes:
        raise _UnusualError
    if document.outputs is UNSET:
        wanted_format = ALL_BINARY if binary_default else ALL_JSON
    else:
        wanted_format = _read_outputs(document.outputs, request, binary_default)
    return InferPlan(request, binary_inputs, binary_bytes, wanted_format)


def _json_data(item: _Input, count: int, limits: BodyLimits) -> bytes:
    if item.data is UNSET or (item.parameters is not UNSET and item.parameters.shared_memory_region is not UNSET):
        raise _UnusualError
    data = encode_json(item.datatype, item.data, count)
    if data is None or len(data) > limits.max_input_size_bytes:
        raise _UnusualError
    return data


def _read_outputs(outputs: list[_Output], request: InferenceRequest, binary_default: bool) -> OutputFormat:
    forms: dict[str, bool] = {}
    for output in outputs:
        parameters = output.parameters
        if parameters is UNSET:
            forms[output.name] = binary_default
        elif parameters.shared_memory_region is not UNSET or parameters.classification is not UNSET:
            raise _UnusualError
        else:
            forms[output.name] = binary_default if parameters.binary_data is UNSET else parameters.binary_data
    if len(forms) != len(outputs):
        raise _UnusualError
    request.requested_outputs = tuple(forms)
    return output_format(forms, binary_default)


_DECIMAL = re.compile(rb"[+-]?[0-9]+\Z")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def parse_header_length(value: bytes, content_length: int) -> int:
    """The value of ``Inference-Header-Content-Length``; 0 means a raw body without JSON.

    Args:
        value: as the client sent it.
        content_length: bytes of the whole body.

    Raises:
        InferenceError: INVALID_ARG, if it is no number, or not between 0 and the body's length.
    """
    if value.isdigit() and len(value) < 10:  # what every well-meaning client sends
        length = int(value)
        if length <= content_length:
            return length
    value = value.strip()
    if _DECIMAL.match(value) is None:
        raise _header_length_error(f"got: {value.decode('latin-1')}")
    # A number of more digits than this is out of range, and costs nothing to refuse unread.
    length = int(value) if len(value) < 20 else 2**63
    if not _INT32_MIN <= length <= _INT32_MAX:
        raise _header_length_error(
            f"value is out of range [ {_INT32_MIN}, {_INT32_MAX} ], got: {value.decode('latin-1')}"
        )
    if not 0 <= length <= content_length:
        raise InferenceError(
            f"inference header size should be in range (0, {content_length}), got: {length}", ErrorCode.INVALID_ARG
        )
    return length


def _header_length_error(reason: str) -> InferenceError:
    return InferenceError(f"Unable to parse Inference-Header-Content-Length, {reason}", ErrorCode.INVALID_ARG)
