"""Encodes a response: JSON, or JSON followed by binary tensors.

The last station of the hot path before the HTTP protocol writes. Outputs come from an untrusted stub, but their sizes
were checked against their shapes on arrival; only the contents of BYTES elements are checked here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pybackend.errors import InferenceError, invalid
from pybackend.inference.region import IN_REGION
from pybackend.inference.request import ParameterValue
from pybackend.inference.response import InferenceResponse, Layout, layout_of, outputs_in
from pybackend.inference.tensor import Buffer, OutputTensor
from pybackend.protocol.classification import classes_of
from pybackend.protocol.infer_plan import ALL_BINARY, SMALL_BYTES, OutputFormat
from pybackend.protocol.json.tensor import FLOATS, decode_values
from pybackend.recurring import Recurring
from pybackend_wire.bytes_tensor import BytesTensorError

MOST_HEADERS, LONGEST_HEADER_BYTES = 512, 8192
"""Limits of the memory of headers: stubs choose the names of outputs."""


class EncodedResponse:
    """The body of a response, in pieces.

    ``chunks`` follow the JSON part, whose length is None if there are none. If the response ``borrows_memory``, a
    chunk is a view of its memory: release it after sending.
    """

    __slots__ = ("body_bytes", "borrows_memory", "chunks", "header_json", "json_length")

    def __init__(self, header_json: bytes, chunks: list[Buffer], json_length: int | None = None) -> None:
        body_bytes = len(header_json)
        borrows_memory = False
        for chunk in chunks:
            body_bytes += len(chunk)
            if type(chunk) is not bytes:
                borrows_memory = True
        self.header_json = header_json
        self.json_length = json_length
        self.chunks = chunks
        self.body_bytes = body_bytes
        self.borrows_memory = borrows_memory


class BinaryParameters(Struct, gc=False):
    """JSON parameters of an output whose bytes follow the JSON part."""

    binary_data_size: int


class OutputHead(Struct, gc=False):
    """An output in the response's JSON, without its data."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: BinaryParameters | UnsetType = UNSET


class _Output(Struct, gc=False):
    name: str
    datatype: str
    shape: Sequence[int]
    parameters: BinaryParameters | UnsetType = UNSET
    data: Sequence[Any] | UnsetType = UNSET


class _Document(Struct, gc=False, kw_only=True):
    id: str | UnsetType
    model_name: str
    model_version: str
    parameters: Mapping[str, ParameterValue] | UnsetType
    outputs: list[_Output]


_encode = msgspec.json.Encoder().encode

headers: Recurring[Layout, bytes] = Recurring(MOST_HEADERS, LONGEST_HEADER_BYTES)
"""Those of :func:`binary_header`."""


def encode_response(response: InferenceResponse, output_format: OutputFormat) -> EncodedResponse:
    """Encode a result; not for responses that hold an error."""
    if output_format is ALL_BINARY and not response.parameters and response.id.isascii():
        return _encode_binary(response)
    outputs: list[_Output] = []
    chunks: list[Buffer] = []
    may_hold_nan = False
    for tensor in wanted_outputs(response.outputs, output_format):
        if tensor.data is IN_REGION:
            outputs.append(_Output(tensor.name, tensor.datatype, tensor.shape))
            continue
        if not output_format.is_binary(tensor.name):
            data = json_values(tensor, tensor.data)
            outputs.append(_Output(tensor.name, tensor.datatype, tensor.shape, UNSET, data))
            may_hold_nan = may_hold_nan or tensor.datatype in FLOATS
            continue
        size = len(tensor.data)
        outputs.append(_Output(tensor.name, tensor.datatype, tensor.shape, BinaryParameters(size)))
        if size:
            chunks.append(chunk_of(tensor.data, size))
    document = _Document(
        id=response.id or UNSET,
        model_name=response.model_name,
        model_version=response.model_version,
        parameters=response.parameters or UNSET,
        outputs=outputs,
    )
    header_json = encode_document(document, may_hold_nan=may_hold_nan or document.parameters is not UNSET)
    return EncodedResponse(header_json, chunks, len(header_json) if chunks else None)


def wanted_outputs(outputs: Sequence[OutputTensor], output_format: OutputFormat) -> Sequence[OutputTensor]:
    """The outputs, with classes instead of tensors where requested."""
    classes = output_format.classes
    if classes is None:
        return outputs
    return [classes_of(each, classes[each.name]) if each.name in classes else each for each in outputs]


def _encode_binary(response: InferenceResponse) -> EncodedResponse:
    """The most common response.

    But for the id, its JSON part depends only on names, datatypes and shapes, which recur.
    """
    layout, data = layout_of(response, response.outputs)
    chunks = [chunk_of(each, len(each)) for each in data if each]
    header_json = headers.get(layout)
    if header_json is None:
        header_json = binary_header(layout)
        headers.remember(layout, header_json, len(header_json))
    if response.id:
        # The first member, as in every other response.
        header_json = b'{"id":%b,%b' % (_encode(response.id), header_json[1:])
    return EncodedResponse(header_json, chunks, len(header_json) if chunks else None)


def chunk_of(data: Buffer, size: int) -> Buffer:
    """A tensor's bytes to send: a copy if that costs less than keeping the response's memory."""
    return data if size > SMALL_BYTES or type(data) is bytes else bytes(data)


def binary_header(layout: Layout) -> bytes:
    """The JSON part of a response whose outputs are all binary, without an id."""
    outputs = [
        _Output(name, datatype, shape, BinaryParameters(size)) for name, datatype, shape, size in outputs_in(layout)
    ]
    return encode_document(_without_id(layout, outputs), may_hold_nan=False)


def _without_id(layout: Layout, outputs: list[_Output]) -> _Document:
    name, version, *_ = layout
    return _Document(id=UNSET, model_name=name, model_version=version, parameters=UNSET, outputs=outputs)


def json_frame(layout: Layout) -> bytes:
    """A response that is JSON only, without an id, and with ``%b`` for the values of each output.

    See :func:`encode_values`.
    """
    beginning = encode_document(_without_id(layout, []), may_hold_nan=False).removesuffix(b"]}")
    heads = [
        encode_document(OutputHead(name, datatype, shape), may_hold_nan=False)
        for name, datatype, shape, _ in outputs_in(layout)
    ]
    outputs = [head.removesuffix(b"}").replace(b"%", b"%%") + b',"data":%b}' for head in heads]
    return beginning.replace(b"%", b"%%") + b",".join(outputs) + b"]}"


def encode_values(values: Sequence[Any]) -> bytes:
    """The JSON of an output's numbers; NaN and infinities are ``null``."""
    return _encode(values)


def document_head(response: InferenceResponse) -> bytes:
    """A response's JSON up to the start of its first output."""
    document = _Document(
        id=response.id or UNSET,
        model_name=response.model_name,
        model_version=response.model_version,
        parameters=response.parameters or UNSET,
        outputs=[],
    )
    return encode_document(document, may_hold_nan=document.parameters is not UNSET).removesuffix(b"]}")


def json_values(tensor: OutputTensor, data: Buffer, *, may_be_binary: bool = True) -> Sequence[Any]:
    """An output's elements as JSON values; the route has a binary form for outputs, or not."""
    try:
        return decode_values(tensor.datatype, data)
    except UnicodeDecodeError:
        raise not_text_error(tensor, may_be_binary=may_be_binary) from None
    except BytesTensorError as error:
        raise InferenceError(f"the model's output '{tensor.name}' is broken: {error}") from None


def not_text_error(tensor: OutputTensor, *, may_be_binary: bool = True) -> InferenceError:
    """The error for an output that cannot be sent as JSON."""
    advice = (
        "Please use the binary data format for output: set 'binary_data' in its parameters, or name no outputs and set "
        "'binary_data_output' in the request's"
        if may_be_binary
        else "This route sends JSON only: ask /infer for the output in the binary data format"
    )
    return invalid(f"output '{tensor.name}' holds bytes that are not UTF-8 and cannot be sent as JSON. {advice}")


def encode_document(document: Any, *, may_hold_nan: bool) -> bytes:
    """JSON of a document, with ``?`` for text that UTF-8 cannot hold.

    NaN and infinities are bare ``NaN`` and ``Infinity`` if it ``may_hold_nan``, and else ``null``, as strict JSON has
    it.
    """
    try:
        text = _encode(document)
    except UnicodeEncodeError:
        text = _encode_literally(document)
        return text if may_hold_nan else _encode(json.loads(text))
    # msgspec writes NaN and infinities as null, which otherwise occurs only inside strings.
    if may_hold_nan and b"null" in text:
        return _encode_literally(document)
    return text


def _encode_literally(document: Any) -> bytes:
    text = json.dumps(msgspec.to_builtins(document), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
