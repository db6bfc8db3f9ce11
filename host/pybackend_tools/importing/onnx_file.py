"""Recognises ONNX files, and finds the files with their external data, by the wire format of protobuf alone.

ONNX files have no magic number. The fields of their outermost message tell them from other files, and the lengths of
these fields show whether a file is whole. Numbers of fields are those of ``onnx.proto``.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pybackend.errors import ServerError
from pybackend_tools.importing.kinds import DamagedFileError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10

_MODEL_FIELDS = {1: _VARINT, 2: _BYTES, 3: _BYTES, 4: _BYTES, 5: _VARINT, 6: _BYTES, 7: _BYTES, 8: _BYTES}
_MORE_MODEL_FIELDS = {14, 20, 25, 26}
_IR_VERSION, _PRODUCER, _GRAPH, _OPSET, _FUNCTIONS = 1, 2, 7, 8, 25
_MOST_IR_VERSION, _UNKNOWN = 100, -1

_TENSORS_WITHIN = {
    "model": {_GRAPH: "graph", _FUNCTIONS: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""The fields that lead to entries of external data, by message."""


class _Field(NamedTuple):
    number: int
    wire: int
    start: int
    end: int
    value: int


class _Malformed(Exception):
    """These bytes are no protobuf message.

    ``cut_off`` is the number of the field in whose middle they end, -1 if it is unknown, 0 for none.
    """

    def __init__(self, cut_off: int = 0) -> None:
        super().__init__()
        self.cut_off = cut_off


def is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX model. Blocking; reads little of it.

    Raises ServerError if it begins like one, and is truncated.
    """
    if not os.path.getsize(path):
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        seen: dict[int, int] = {}
        try:
            for field in _fields(data, 0, len(data)):
                if field.number not in _MORE_MODEL_FIELDS and _MODEL_FIELDS.get(field.number) != field.wire:
                    return False
                seen.setdefault(field.number, field.value)
        except _Malformed as error:
            if error.cut_off and _begins_like_one({**seen, error.cut_off: 0}):
                raise DamagedFileError(f"{path} is a truncated ONNX model: copy it again") from None
            return False
    return _begins_like_one(seen) and _GRAPH in seen


def external_files(path: Path) -> list[str]:
    """The names of the files with the tensors that are not in an ONNX file, relative to its directory, sorted. Blocking.

    Raises ServerError if the file is damaged.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return sorted(set(_locations(data, "model", 0, len(data))))
        except (_Malformed, UnicodeDecodeError, RecursionError):
            raise ServerError(f"{path} is a damaged ONNX model: copy it again") from None


def _begins_like_one(seen: Mapping[int, int]) -> bool:
    return 0 < seen.get(_IR_VERSION, 0) <= _MOST_IR_VERSION and not seen.keys().isdisjoint({_PRODUCER, _GRAPH, _OPSET})


def _locations(data: mmap.mmap, message: str, start: int, end: int) -> Iterator[str]:
    within = _TENSORS_WITHIN[message]
    for field in _fields(data, start, end):
        inner = within.get(field.number) if field.wire == _BYTES else None
        if inner == "entry":
            pair = {each.number: data[each.start : each.end] for each in _fields(data, field.start, field.end)}
            if pair.get(1) == b"location":
                yield pair.get(2, b"").decode()
        elif inner is not None:
            yield from _locations(data, inner, field.start, field.end)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    at = start
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        value, begin = 0, at
        if wire == _VARINT:
            value, at = _varint(data, at, end)
        elif wire == _BYTES:
            length, begin = _varint(data, at, end)
            at = begin + length
        elif wire in {_FIXED32, _FIXED64}:
            at += 4 if wire == _FIXED32 else 8
        else:
            raise _Malformed
        if at > end:
            raise _Malformed(number)
        yield _Field(number, wire, begin, at, value)


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = 0
    for count in range(_MOST_VARINT_BYTES):
        if at + count >= end:
            raise _Malformed(_UNKNOWN)
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise _Malformed
