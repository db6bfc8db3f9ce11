"""Encodes a large response as JSON in pieces of a few milliseconds each, so that other requests need not wait.

Complements ``infer_response``, for responses whose JSON would block the event loop.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from struct import Struct

import msgspec

from pybackend.inference.region import IN_REGION
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, OutputTensor
from pybackend.protocol.classification import classes_in_steps
from pybackend.protocol.infer_plan import ALL_BINARY, OutputFormat
from pybackend.protocol.json.infer_response import (
    BinaryParameters,
    EncodedResponse,
    OutputHead,
    chunk_of,
    document_head,
    json_values,
    not_text_error,
)
from pybackend.protocol.json.tensor import FLOATS
from pybackend_wire.bytes_tensor import LENGTH_BYTES
from pybackend_wire.dtypes import ITEMSIZE

LARGEST_WHOLE_BYTES = 64 * 1024
"""Tensor bytes converted to JSON, or classified, at a time: at most some milliseconds of work."""

ELEMENTS_PER_PIECE = 8 * 1024
BYTES_PER_PIECE = 256 * 1024
"""Limits on the part of a tensor in one piece."""

_LENGTH = Struct("<I")
_utf8_decoder = getincrementaldecoder("utf-8")
_encode = msgspec.json.Encoder().encode


def is_large(response: InferenceResponse, output_format: OutputFormat) -> bool:
    """True if the response must be encoded in pieces."""
    if output_format is ALL_BINARY:
        return False
    classes = output_format.classes or ()
    for tensor in response.outputs:
        if len(tensor.data) > LARGEST_WHOLE_BYTES and (
            tensor.name in classes or not output_format.is_binary(tensor.name)
        ):
            return True
    return False


class PiecewiseResponse:
    """The body of a response, made while it is sent.

    If it ``has_binary`` tensors behind the JSON part, its length must be known before the first byte is sent. If it
    ``may_fail``, an output may prove not to be text, and the error must be sent before the first byte. ``chunks`` are
    complete once :meth:`json_pieces` has ended.
    """

    def __init__(self, response: InferenceResponse, output_format: OutputFormat) -> None:
        self._response = response
        self._format = output_format
        self.has_binary = any(output_format.is_binary(tensor.name) for tensor in response.outputs)
        self.may_fail = bool(output_format.classes) or any(tensor.datatype == "BYTES" for tensor in response.outputs)
        self.chunks: list[Buffer] = []

    @property
    def held_bytes(self) -> int:
        """The memory that the response holds until it is released."""
        return sum(len(tensor.data) for tensor in self._response.outputs)

    def json_pieces(self) -> Iterator[bytes]:
        """The JSON part in pieces; an empty piece only marks a unit of work."""
        classes = self._format.classes or {}
        yield document_head(self._response)
        separator = b""
        for output in self._response.outputs:
            tensor = output
            if output.name in classes:
                tensor = yield from classes_in_steps(output, classes[output.name])
            yield separator
            yield from self._output(tensor)
            separator = b","
        yield b"]}"

    def collected(self, pieces: list[bytes]) -> EncodedResponse:
        """The complete response, given the pieces of its JSON part."""
        size = sum(map(len, pieces))
        return EncodedResponse(b"", [*pieces, *self.chunks], size if self.chunks else None)

    def _output(self, tensor: OutputTensor) -> Iterator[bytes]:
        if tensor.data is IN_REGION:
            yield _encode(OutputHead(tensor.name, tensor.datatype, tensor.shape))
            return
        if self._format.is_binary(tensor.name):
            size = len(tensor.data)
            yield _encode(OutputHead(tensor.name, tensor.datatype, tensor.shape, BinaryParameters(size)))
            if size:
                self.chunks.append(chunk_of(tensor.data, size))
            return
        yield _encode(OutputHead(tensor.name, tensor.datatype, tensor.shape))[:-1] + b',"data":['
        yield from _texts(tensor) if tensor.datatype == "BYTES" else _numbers(tensor)
        yield b"]}"


def _numbers(tensor: OutputTensor) -> Iterator[bytes]:
    """The elements as JSON, without the brackets."""
    step = ELEMENTS_PER_PIECE * ITEMSIZE[tensor.datatype]
    for begin in range(0, len(tensor.data), step):
        values = json_values(tensor, bytes(tensor.data[begin : begin + step]))
        text = _encode(values)
        if tensor.datatype in FLOATS and b"null" in text:
            text = json.dumps(values, separators=(",", ":")).encode()
        yield (b"," if begin else b"") + text[1:-1]


def _texts(tensor: OutputTensor) -> Iterator[bytes]:
    """The elements of a BYTES tensor as JSON, without the brackets."""
    data = memoryview(tensor.data)
    for begin, end in _runs(data):
        separator = b"," if begin else b""
        if end - begin > BYTES_PER_PIECE and _LENGTH.unpack_from(data, begin)[0] == end - begin - LENGTH_BYTES:
            yield separator + b'"'
            yield from _long_text(tensor, data[begin + LENGTH_BYTES : end])
            yield b'"'
        else:
            yield separator + _encode(json_values(tensor, bytes(data[begin:end])))[1:-1]


def _runs(data: memoryview) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive runs of whole elements; a long element is alone, a malformed one is truncated."""
    size = len(data)
    begin = end = count = 0
    while end < size:
        length = _LENGTH.unpack_from(data, end)[0] if size - end >= LENGTH_BYTES else 0
        following = end + LENGTH_BYTES + length
        if count and (count == ELEMENTS_PER_PIECE or following - begin > BYTES_PER_PIECE):
            yield begin, end
            begin, count = end, 0
        end, count = following, count + 1
    if begin < size:
        yield begin, size


def _long_text(tensor: OutputTensor, data: memoryview) -> Iterator[bytes]:
    """One element, without the quotes."""
    decoder = _utf8_decoder()
    try:
        for begin in range(0, len(data), BYTES_PER_PIECE):
            yield _encode(decoder.decode(bytes(data[begin : begin + BYTES_PER_PIECE])))[1:-1]
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise not_text_error(tensor) from None
