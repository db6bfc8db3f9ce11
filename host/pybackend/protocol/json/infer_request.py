"""Parses an infer request's bytes into a plan: the first station of the hot path after the HTTP parser.

Usage: a front end calls :func:`parse_header_length`, then :func:`parse_infer` with the JSON part (or ``parse_raw``),
then supplies the binary tensors' bytes and calls ``validation``. One typed msgspec pass handles ordinary requests.
Everything that it refuses or finds unusual is read again by ``infer_document``, which alone knows the order of checks
and the error texts. Therefore this module only raises errors that both paths share.
"""

import re
from math import prod
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pybackend.errors import InferenceError, invalid
from pybackend.inference.region import FindRegion, RegionOutput, RegionPart, no_region, tensor_in_region
from pybackend.inference.request import InferenceRequest, ParameterValue, request_prefix
from pybackend.inference.tensor import INT64_MAX, Buffer, InputTensor
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON, InferPlan, OutputFormat, output_format
from pybackend.protocol.json.infer_document import DocumentReader
from pybackend.protocol.json.outline import CutTensors
from pybackend.protocol.json.parameters import apply_json_parameters
from pybackend.protocol.json.tensor import encode_json
from pybackend.protocol.limits import BodyLimits
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import ITEMSIZE

# Larger shapes take the slow path, which has a text for every overflow: this many 8-byte elements still fit 63 bits.
_PLAIN_COUNT = 2**59

_PLAIN_RANK = 32

_Size = Annotated[int, Meta(ge=0, le=INT64_MAX)]
_DatatypeName = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES",
    "BF16",
]  # fmt: skip


class _InputParameters(Struct, gc=False):
    binary_data_size: _Size | UnsetType = UNSET
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_offset: _Size = 0
    shared_memory_byte_size: _Size | UnsetType = UNSET


class _Input(Struct, gc=False):
    name: str
    datatype: _DatatypeName
    shape: Annotated[list[_Size], Meta(max_length=_PLAIN_RANK)]
    parameters: _InputParameters | None = None
    data: Raw | UnsetType = UNSET


class _OutputParameters(Struct, gc=False):
    binary_data: bool | UnsetType = UNSET
    classification: Raw | UnsetType = UNSET
    shared_memory_region: str | UnsetType = UNSET
    shared_memory_offset: _Size = 0
    shared_memory_byte_size: _Size | UnsetType = UNSET


class _Output(Struct, gc=False):
    name: str
    parameters: _OutputParameters | None = None


class _Document(Struct, gc=False):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, ParameterValue] | None = None
    outputs: list[_Output] | None = None


_decode = msgspec.json.Decoder(_Document).decode
_decode_stand_in = msgspec.json.Decoder(list[int]).decode


class _UnusualError(Exception):
    """The document does not fit the fast path; it may still be valid."""


def parse_infer(
    header: bytes | memoryview,
    *,
    header_length: int | None,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    available_bytes: int | None = None,
    cut_tensors: CutTensors | None = None,
    find_region: FindRegion = no_region,
) -> InferPlan:
    """Parse the JSON part of an infer request. The plan is not validated against the model yet.

    The ``header`` is the whole body if the client did not send its length. If the caller knows ``available_bytes``
    behind it, sizes are checked here, in the reference's order; otherwise the caller counts them as they arrive.
    ``cut_tensors`` are None if the JSON part is complete.
    """
    if header_length is not None and len(header) < header_length:
        raise invalid(f"unexpected size for request JSON, expecting {header_length - len(header)} more bytes")
    limits.check_json(len(header))
    try:
        return _parse_fast(
            header,
            header_length is not None,
            signature,
            model_version,
            limits,
            available_bytes,
            cut_tensors,
            find_region,
        )
    except (_UnusualError, ValueError, OverflowError, RecursionError):
        pass  # msgspec's errors and Unicode errors are ValueErrors
    if cut_tensors is not None:
        cut_tensors.tensors.clear()
    has_header_length = header_length is not None
    reader = DocumentReader(
        signature, model_version, limits, has_header_length, available_bytes, cut_tensors, find_region
    )
    return reader.read(bytes(header))


def _parse_fast(
    header: bytes | memoryview,
    has_header_length: bool,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    available_bytes: int | None,
    cut_tensors: CutTensors | None,
    find_region: FindRegion,
) -> InferPlan:
    document = _decode(header)
    request = InferenceRequest(signature.model_name, model_version, id=document.id or "")
    binary_default = document.parameters is not None and apply_json_parameters(request, document.parameters)
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
        if parameters is None or parameters.binary_data_size is UNSET:
            if parameters is not None and parameters.shared_memory_region is not UNSET:
                if item.data is not UNSET:
                    raise _UnusualError
                tensor = tensor_in_region(item.name, item.datatype, item.shape, _region_part(parameters, find_region))
                request.regions = {}
            elif cut_tensors is None:
                tensor.data = _json_data(item, count, limits)
            else:
                _cut_out(item, tensor, count, limits, cut_tensors)
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
    if document.outputs is None:
        wanted_format = ALL_BINARY if binary_default else ALL_JSON
    else:
        wanted_format = _read_outputs(document.outputs, request, binary_default, find_region)
    return InferPlan(request, binary_inputs, binary_bytes, wanted_format)


def _json_data(item: _Input, count: int, limits: BodyLimits) -> bytes:
    if item.data is UNSET:
        raise _UnusualError
    data = encode_json(item.datatype, item.data, count)
    if data is None or len(data) > limits.max_input_size_bytes:
        raise _UnusualError
    return data


def _cut_out(item: _Input, tensor: InputTensor, count: int, limits: BodyLimits, cut_tensors: CutTensors) -> None:
    if item.data is UNSET or count * ITEMSIZE[item.datatype] > limits.max_input_size_bytes:
        raise _UnusualError
    if not cut_tensors.add(tensor, _decode_stand_in(item.data), count):
        raise _UnusualError


def _region_part(parameters: _InputParameters | _OutputParameters, find_region: FindRegion) -> RegionPart:
    if parameters.shared_memory_region is UNSET or parameters.shared_memory_byte_size is UNSET:
        raise _UnusualError
    try:
        return find_region(
            parameters.shared_memory_region, parameters.shared_memory_offset, parameters.shared_memory_byte_size
        )
    except InferenceError:
        raise _UnusualError from None  # there may be an earlier mistake


def _read_outputs(
    outputs: list[_Output], request: InferenceRequest, binary_default: bool, find_region: FindRegion
) -> OutputFormat:
    forms: dict[str, bool] = {}
    for output in outputs:
        parameters = output.parameters
        if parameters is None:
            forms[output.name] = False  # the request-wide default is for requests that name no outputs
        elif parameters.classification is not UNSET:
            raise _UnusualError
        elif parameters.shared_memory_region is not UNSET:
            if parameters.binary_data is True:
                raise _UnusualError
            forms[output.name] = False
            request.regions = request.regions or {}
            request.regions[output.name] = RegionOutput.of(_region_part(parameters, find_region))
        else:
            forms[output.name] = parameters.binary_data is not UNSET and parameters.binary_data
    if len(forms) != len(outputs):
        raise _UnusualError
    request.requested_outputs = tuple(forms)
    return output_format(forms, binary_default)


_DECIMAL = re.compile(rb"[+-]?[0-9]+\Z")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_HEADER_LENGTH_ADVICE = (
    "Its value is the number of bytes of the JSON that precedes the binary tensors, such as 150; leave the header out "
    "if the body is JSON only"
)


def parse_header_length(value: bytes, content_length: int) -> int:
    """The value of ``Inference-Header-Content-Length``; 0 means a raw body without JSON."""
    if value.isdigit() and len(value) < 10:  # the ordinary case
        length = int(value)
        if length <= content_length:
            return length
    value = value.strip()
    if _DECIMAL.match(value) is None:
        raise _header_length_error(f"got: {value.decode('latin-1')}. {_HEADER_LENGTH_ADVICE}")
    # A number with more digits is out of range and is refused without parsing it.
    length = int(value) if len(value) < 20 else 2**63
    if not _INT32_MIN <= length <= _INT32_MAX:
        raise _header_length_error(
            f"value is out of range [ {_INT32_MIN}, {_INT32_MAX} ], got: {value.decode('latin-1')}. {_HEADER_LENGTH_ADVICE}"
        )
    if not 0 <= length <= content_length:
        raise invalid(
            f"inference header size should be in range (0, {content_length}), got: {length}. {_HEADER_LENGTH_ADVICE}"
        )
    return length


def _header_length_error(reason: str) -> InferenceError:
    return invalid(f"Unable to parse Inference-Header-Content-Length, {reason}")


def parse_raw(
    body: bytes | memoryview, signature: ModelSignature, *, model_version: str, limits: BodyLimits
) -> InferPlan:
    """Make a request from a raw body (header length 0): the data of the only input.

    The model's signature defines the rest.

    Every output of the response is binary. The body of a BYTES tensor is the one element without a length; any other
    input's data is a view of ``body``. The plan is not validated.
    """
    limits.check_raw(len(body))
    if len(signature.inputs) != 1:
        raise _refusal(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} inputs in "
            f"'{signature.model_name}' model configuration"
        )
    (expected,) = signature.inputs.values()
    batch = [1] if signature.max_batch_size else []
    shape = batch + _deduce_dims(expected, len(body))
    data: Buffer = encode_elements([bytes(body)]) if expected.datatype == "BYTES" else body
    request = InferenceRequest(
        signature.model_name, model_version, inputs=[InputTensor(expected.name, expected.datatype, shape, data)]
    )
    return InferPlan(request, [], 0, ALL_BINARY)


def _deduce_dims(expected: TensorSignature, size_bytes: int) -> list[int]:
    dims = list(expected.dims)
    variable = dims.count(-1)
    if variable > 1:
        raise _refusal(
            f"The shape of the raw input '{expected.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    if expected.datatype == "BYTES":
        if variable or prod(dims) != 1:
            raise _refusal(f"For BYTE datatype raw input '{expected.name}', the model must have input shape [1]")
    elif variable:
        others = prod(dim for dim in dims if dim != -1) * expected.itemsize
        dims[dims.index(-1)] = size_bytes // others if others else 0
    return dims


def _refusal(message: str) -> InferenceError:
    return invalid(request_prefix("") + message)
