"""Encodes responses as gRPC messages: a header, and the outputs' memory as raw tensors behind it, without copying it.

The last station of a gRPC request before the front end adds its framing. Fields are written in the order of their
numbers, so the raw tensors come last, each after its tag and length. protobuf writes everything before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from pybackend.errors import InferenceError, invalid
from pybackend.inference.request import ParameterValue
from pybackend.inference.response import InferenceResponse, Layout, layout_of
from pybackend.inference.tensor import INT64_MAX, Buffer, OutputTensor
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.protocol.grpc.message import written_varint
from pybackend.protocol.infer_plan import ALL_BINARY, SMALL_BYTES, OutputFormat
from pybackend.protocol.json.infer_response import wanted_outputs
from pybackend.protocol.limits import INT64_MIN, UINT64_MAX
from pybackend.recurring import Recurring

LARGEST_MESSAGE_BYTES = 2**31 - 1
"""The largest message that protobuf, and so any client, can read."""

FINAL = "triton_final_response"

_ID, _RAW = bytes((3 << 3 | 2,)), bytes((6 << 3 | 2,))  # tags of ModelInferResponse
_INFER_RESPONSE = bytes((2 << 3 | 2,))  # tag of ModelStreamInferResponse

MOST_HEADERS, LONGEST_HEADER_BYTES = 512, 4096
"""Limits of the memory of answers: stubs choose the names of outputs."""


class EncodedMessage(Struct, eq=False):
    """A serialized message, in pieces.

    If it ``borrows_memory``, a piece is a view of the response's memory: release the response after sending it.
    """

    pieces: list[Buffer]
    nbytes: int
    borrows_memory: bool


def encode_message(
    response: InferenceResponse, output_format: OutputFormat, headers: MessageHeaders | None = None
) -> EncodedMessage:
    """Encode a result as a ``ModelInferResponse``; not for responses that hold an error."""
    return _encode(response, output_format, _parameters(response.parameters) if response.parameters else b"", headers)


def encode_stream_message(
    response: InferenceResponse, output_format: OutputFormat, headers: MessageHeaders | None = None
) -> EncodedMessage:
    """Encode a result as a ``ModelStreamInferResponse``, which says whether it is its request's last.

    A response that only ends the stream becomes one without outputs.
    """
    if response.parameters:
        inner = _encode(response, output_format, _parameters({**response.parameters, FINAL: response.final}), headers)
    else:
        inner = _encode(response, output_format, _final_flag(response.final), headers)
    head = _INFER_RESPONSE + written_varint(inner.nbytes)
    inner.pieces[0] = head + inner.pieces[0]
    inner.nbytes += len(head)
    _check_size(inner.nbytes)
    return inner


def encode_stream_error(error: InferenceError, request_id: str, response: InferenceResponse | None = None) -> bytes:
    """Encode a failure as a ``ModelStreamInferResponse``."""
    inner = message_class("inference.ModelInferResponse")(id=_text(request_id))
    if response is not None:
        inner.model_name = _text(response.model_name)
        inner.model_version = response.model_version
        inner.parameters[FINAL].bool_param = response.final
    message = message_class("inference.ModelStreamInferResponse")(
        error_message=_text(error.message), infer_response=inner
    )
    written: bytes = message.SerializeToString()
    return written


def message_format(header: MessageHeader) -> bytes:
    """A message of a result with small outputs and without parameters, as a format for bytes.

    ``%b`` stands for the field of the id (see :func:`id_field`) and then for the data of each output.
    """
    form = _constant(header.model) + b"%b" + _constant(header.tensors)
    return form + b"".join(_constant(tag) + b"%b" for tag in header.tags)


def _constant(part: bytes) -> bytes:
    return part.replace(b"%", b"%%")


def id_field(request_id: str) -> bytes:
    """The field of a message that has an id."""
    written = request_id.encode("utf-8", "replace")
    return _ID + written_varint(len(written)) + written


class MessageHeader(Struct, eq=False):
    """The recurring part of the responses of a model whose outputs have the same shapes.

    A ``model`` comes before the id, then ``tensors`` describe the outputs, and a tag precedes each raw tensor.
    ``nbytes`` includes the raw tensors. If ``is_small``, each of them is short enough to be copied. ``form`` is a place
    for a front end, which this module never touches.
    """

    model: bytes
    tensors: bytes
    tags: tuple[bytes, ...]
    nbytes: int
    is_small: bool
    form: Any = None


MessageHeaders = Recurring[Layout, MessageHeader]
"""Those of earlier responses, by their layout."""


def _encode(
    response: InferenceResponse, output_format: OutputFormat, parameters: bytes, headers: MessageHeaders | None
) -> EncodedMessage:
    outputs = response.outputs if output_format is ALL_BINARY else wanted_outputs(response.outputs, output_format)
    header = (
        _make_header(response, outputs)
        if headers is None
        else header_of(response, outputs, layout_of(response, outputs)[0], headers)
    )
    nbytes, tags = header.nbytes, header.tags
    parts: list[Buffer] = [header.model]
    if response.id:
        identifier = id_field(response.id)
        parts.append(identifier)
        nbytes += len(identifier)
    if parameters:
        parts.append(parameters)
        nbytes += len(parameters)
    parts.append(header.tensors)
    _check_size(nbytes)
    if header.is_small:
        for tag, tensor in zip(tags, outputs, strict=True):
            parts += (tag, tensor.data)
        return EncodedMessage([b"".join(parts)], nbytes, False)
    pieces: list[Buffer] = []
    borrows_memory = False
    for tag, tensor in zip(tags, outputs, strict=True):
        parts.append(tag)
        data = tensor.data
        if len(data) <= SMALL_BYTES:
            parts.append(data)
            continue
        pieces += (b"".join(parts), data)
        parts = []
        borrows_memory = borrows_memory or type(data) is not bytes
    if parts:
        pieces.append(b"".join(parts))
    return EncodedMessage(pieces, nbytes, borrows_memory)


def header_of(
    response: InferenceResponse, outputs: Sequence[OutputTensor], layout: Layout, headers: MessageHeaders
) -> MessageHeader:
    """The header of a response, whose layout is known."""
    header = headers.get(layout)
    if header is None:
        header = _make_header(response, outputs)
        headers.remember(layout, header, len(header.model) + len(header.tensors))
    return header


def _make_header(response: InferenceResponse, outputs: Sequence[OutputTensor]) -> MessageHeader:
    of = message_class("inference.ModelInferResponse")
    model = of(model_name=_text(response.model_name), model_version=response.model_version).SerializeToString()
    described = [{"name": _text(each.name), "datatype": each.datatype, "shape": each.shape} for each in outputs]
    tensors = of(outputs=described).SerializeToString()
    sizes = [len(tensor.data) for tensor in outputs]
    tags = tuple(_RAW + written_varint(size) for size in sizes)
    nbytes = len(model) + len(tensors) + sum(sizes) + sum(map(len, tags))
    return MessageHeader(model, tensors, tags, nbytes, max(sizes, default=0) <= SMALL_BYTES)


@lru_cache(maxsize=2)
def _final_flag(final: bool) -> bytes:
    return _parameters({FINAL: final})


def _parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    message = message_class("inference.ModelInferResponse")()
    put_parameters(message, parameters, "response")
    written: bytes = message.SerializeToString()
    return written


def put_parameters(message: Any, parameters: Mapping[str, ParameterValue], kind: str) -> None:
    """Give a message, of a ``kind`` that the error names, its parameters.

    Raises InferenceError: a number does not fit.
    """
    for name, value in parameters.items():
        field = message.parameters[_text(name)]
        if isinstance(value, bool):
            field.bool_param = value
        elif isinstance(value, str):
            field.string_param = _text(value)
        elif isinstance(value, float):
            field.double_param = value
        elif INT64_MIN <= value <= INT64_MAX:
            field.int64_param = value
        elif INT64_MAX < value <= UINT64_MAX:
            field.uint64_param = value
        else:
            raise InferenceError(f"the {kind}'s parameter '{name}' is {value}, which does not fit in 64 bits")


def _text(value: str) -> str:
    """Text that UTF-8 can hold: ``?`` for lone surrogates, which may come from models."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode()
    return value


def _check_size(nbytes: int) -> None:
    if nbytes > LARGEST_MESSAGE_BYTES:
        raise invalid(f"Response has byte size {nbytes} which exceeds gRPC's byte size limit {LARGEST_MESSAGE_BYTES}.")
