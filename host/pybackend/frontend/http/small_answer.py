"""Answers of a few small tensors: all that is not a tensor's data recurs, and is remembered.

The last station of the shortcut through the HTTP protocol object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pybackend.frontend.http.answer_head import BINARY_HEAD, JSON_HEAD
from pybackend.frontend.http.serial_protocol import MAX_KEPT_BYTES
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.protocol.infer_response import binary_header, encode_values, json_frame
from pybackend.protocol.json_tensor import unpacker
from pybackend_wire.dtypes import ITEMSIZE

MOST_LAYOUTS, LONGEST_FRAME_BYTES = 512, 4096
"""Limits of each cache, a few MB in all: stubs choose the names of outputs."""
LARGEST_AS_TEXT_BYTES = 4096
"""The text of a number has up to 24 bytes, and up to 12 for each byte of the number."""

_Layout = tuple[Any, ...]
"""Name and version of the model; name, datatype, shape and size in bytes of each output."""
_Unpack = Callable[[Buffer], Sequence[Any]]

beginnings: dict[_Layout, bytes] = {}
frames: dict[_Layout, tuple[bytes, tuple[_Unpack, ...]]] = {}


def small_answer(response: InferenceResponse) -> bytes:
    """A whole answer: head, JSON part and tensors.

    Args:
        response: a result whose outputs are all wanted as binary tensors.

    Returns:
        ``b""`` if the answer is large, borrows memory, or has an id or parameters: it must be made otherwise.
    """
    if response.id or response.parameters:
        return b""
    layout: list[Any] = [response.model_name, response.model_version]
    pieces = [b""]
    for tensor in response.outputs:
        data = tensor.data
        if type(data) is not bytes:
            return b""
        layout += tensor.name, tensor.datatype, tuple(tensor.shape), len(data)
        pieces.append(data)
    key = tuple(layout)
    pieces[0] = beginnings.get(key) or _beginning(key)
    return b"".join(pieces) if pieces[0] else b""


def _beginning(key: _Layout) -> bytes:
    """Head and JSON part of an answer; empty if the answer is large or has no tensors."""
    model_name, model_version, outputs = _outputs(key)
    nbytes = sum([size for *_, size in outputs])
    if not nbytes or nbytes > MAX_KEPT_BYTES // 2:
        return b""
    header_json = binary_header(model_name, model_version, outputs)
    beginning = BINARY_HEAD % (len(header_json), len(header_json) + nbytes) + header_json
    if len(beginning) > LONGEST_FRAME_BYTES:
        return b""
    if len(beginnings) >= MOST_LAYOUTS:
        beginnings.clear()
    beginnings[key] = beginning
    return beginning


def small_json_answer(response: InferenceResponse) -> bytes:
    """A whole answer that is JSON only.

    Args:
        response: a result whose outputs are all wanted as JSON. Its id is printable ASCII without escapes.

    Returns:
        ``b""`` if the answer is large, borrows memory, has parameters, or outputs that are no finite numbers: it must be
        made otherwise.
    """
    if response.parameters:
        return b""
    layout: list[Any] = [response.model_name, response.model_version]
    for tensor in response.outputs:
        data = tensor.data
        if type(data) is not bytes:
            return b""
        layout += tensor.name, tensor.datatype, tuple(tensor.shape), len(data)
    key = tuple(layout)
    known = frames.get(key) or _frame(key)
    if known is None:
        return b""
    frame, unpackers = known
    texts = []
    for unpack, tensor in zip(unpackers, response.outputs, strict=True):
        text = encode_values(unpack(tensor.data))
        if b"null" in text:
            return b""
        texts.append(text)
    body = frame % tuple(texts)
    if response.id:
        body = b'{"id":"%b",%b' % (response.id.encode(), body[1:])
    return JSON_HEAD % len(body) + body


def _frame(key: _Layout) -> tuple[bytes, tuple[_Unpack, ...]] | None:
    """The JSON of an answer with ``%b`` for the data of each output, and what reads the data; None if the answer is unusual."""
    model_name, model_version, outputs = _outputs(key)
    nbytes = sum([size for *_, size in outputs])
    if nbytes > LARGEST_AS_TEXT_BYTES or not all(ITEMSIZE[datatype] for _, datatype, *_ in outputs):
        return None
    frame = json_frame(model_name, model_version, outputs)
    if len(frame) > LONGEST_FRAME_BYTES:
        return None
    if len(frames) >= MOST_LAYOUTS:
        frames.clear()
    known = frames[key] = frame, tuple([unpacker(datatype, size) for _, datatype, _, size in outputs])
    return known


def _outputs(key: _Layout) -> tuple[str, str, tuple[tuple[str, str, tuple[int, ...], int], ...]]:
    model_name, model_version, *fields = key
    return model_name, model_version, tuple(zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=True))
