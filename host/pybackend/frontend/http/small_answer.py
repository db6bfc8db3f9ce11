"""Answers of a few small binary tensors: all that precedes the tensors recurs, and is remembered.

The last station of the shortcut through the HTTP protocol object.
"""

from __future__ import annotations

from typing import Any

from pybackend.frontend.http.answer_head import BINARY_HEAD
from pybackend.frontend.http.serial_protocol import MAX_KEPT_BYTES
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.infer_response import binary_header

MOST_BEGINNINGS, LONGEST_BEGINNING_BYTES = 512, 4096
"""Limits of the cache of beginnings, a few MB in all: stubs choose the names of outputs."""

_beginnings: dict[tuple[Any, ...], bytes] = {}


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
    pieces[0] = _beginnings.get(key) or _beginning(key)
    return b"".join(pieces) if pieces[0] else b""


def _beginning(key: tuple[Any, ...]) -> bytes:
    """Head and JSON part of an answer; empty if the answer is large or has no tensors."""
    model_name, model_version, *fields = key
    layout = tuple(zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=True))
    nbytes: int = sum(fields[3::4])
    if not nbytes or nbytes > MAX_KEPT_BYTES // 2:
        return b""
    header_json = binary_header(model_name, model_version, layout)
    beginning = BINARY_HEAD % (len(header_json), len(header_json) + nbytes) + header_json
    if len(beginning) > LONGEST_BEGINNING_BYTES:
        return b""
    if len(_beginnings) >= MOST_BEGINNINGS:
        _beginnings.clear()
    _beginnings[key] = beginning
    return beginning
