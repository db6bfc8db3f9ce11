"""Finds the tensors' data in a large JSON document without parsing it.

Used by: ``large_request`` and ``generate``, which parse the rest, called the skeleton, like a small document, and the
data in slices. The skeleton is limited in size: no legitimate one needs a megabyte, and its contents (dimensions,
inputs, parameters) cost far more to parse than numbers. Only texts make that of ``generate`` longer, which checks it
itself.
"""

import re
import secrets
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pybackend.errors import invalid
from pybackend.inference.tensor import InputTensor
from pybackend.protocol.json.document import MAX_NESTING, NESTING_TEXT
from pybackend.protocol.json.scan import Slice, scan

LARGEST_SKELETON_BYTES = 1024 * 1024
SLICE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Form:
    """The place of the data in a kind of document.

    ``depth`` is that of a flat tensor's elements, ``key`` matches what comes before the array of data, and
    ``skeleton_bytes`` limit the rest.
    """

    depth: int
    key: re.Pattern[bytes]
    skeleton_bytes: int


INFER = Form(4, re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\Z'), LARGEST_SKELETON_BYTES)
"""The document, its inputs, the input, its data."""

_LONGEST_KEY_BYTES = 64
_TOKEN_BITS = 63


@dataclass(frozen=True, slots=True)
class Outline:
    """A document, split into skeleton and data."""

    skeleton: bytes  # the document with ``[token, n]`` in place of the n-th array of data
    token: int  # a number that no client can know, so that nothing a client sends looks like such a place
    spans: list[tuple[int, int]]  # where these arrays begin and end in the document, brackets included
    # where in the skeleton each of them is left out, and by how many bytes what follows is shifted
    places: list[tuple[int, int]]

    def around(self, document: bytes) -> list[bytes]:
        """The text before, between and behind the arrays of data."""
        begins, ends = zip(*self.spans, strict=True) if self.spans else ((), ())
        return [document[begin:end] for begin, end in zip((0, *ends), (*begins, len(document)), strict=True)]

    def offset(self, place: int) -> int:
        """Map a position in the skeleton to the document."""
        return place + sum(shift for at, shift in self.places if at < place)


class _Outliner:
    """Finds the arrays of data slice by slice."""

    def __init__(self, text: bytes | bytearray, form: Form) -> None:
        self._text = text
        self._form = form
        self._token = secrets.randbits(_TOKEN_BITS)
        self._copied = 0
        self._data_begin = -1
        self._skeleton = bytearray()
        self._spans: list[tuple[int, int]] = []
        self._places: list[tuple[int, int]] = []

    def follow(self, part: Slice) -> None:
        """Look at the next slice."""
        if len(part.brackets):
            borders = np.flatnonzero(np.where(part.opens, part.depths, part.depths + 1) == self._form.depth)
            for place, is_open in zip(part.brackets[borders].tolist(), part.opens[borders].tolist(), strict=True):
                self._border(part.begin + place, is_open=is_open)
            self._check_nesting(int(part.depths.max()))
        outside = 0 if self._data_begin >= 0 else part.end - self._copied
        check_skeleton(len(self._skeleton) + outside, self._form.skeleton_bytes)

    def outline(self) -> Outline:
        """The result, once everything was scanned."""
        if self._data_begin >= 0:
            self._end_data(len(self._text))
        skeleton = bytes(self._text) if not self._spans else bytes(self._skeleton + self._text[self._copied :])
        return Outline(skeleton, self._token, self._spans, self._places)

    def _border(self, place: int, *, is_open: bool) -> None:
        if self._data_begin >= 0:
            if not is_open:
                self._end_data(place + 1)
        elif is_open and self._text[place] == ord("["):
            before = bytes(self._text[max(0, place - _LONGEST_KEY_BYTES) : place])
            if self._form.key.search(before):
                self._skeleton += self._text[self._copied : place]
                self._data_begin = place

    def _end_data(self, end: int) -> None:
        stand_in = b"[%d,%d]" % (self._token, len(self._spans))
        self._skeleton += stand_in
        self._places.append((len(self._skeleton) - 1, end - self._data_begin - len(stand_in)))
        self._spans.append((self._data_begin, end))
        self._copied, self._data_begin = end, -1

    def _check_nesting(self, depth: int) -> None:
        if depth - self._form.depth + 1 >= MAX_NESTING:
            where = "Unable to parse 'data'" if self._data_begin >= 0 else "failed to parse the request JSON buffer"
            raise invalid(f"{where}: {NESTING_TEXT}")


def check_skeleton(nbytes: int, most_bytes: int = LARGEST_SKELETON_BYTES) -> None:
    """Refuse a document with too many bytes outside tensor data."""
    if nbytes > most_bytes:
        raise invalid(
            f"request JSON has more than {most_bytes} bytes beside its tensors' data. Shapes, names and "
            "parameters never take so much; send large values as tensors"
        )


def outline_in_steps(text: bytes | bytearray, form: Form = INFER) -> Generator[None, None, Outline]:
    """Split a document; each step takes about a millisecond.

    It need not be valid JSON: the parsers of its parts check.
    """
    outliner = _Outliner(text, form)
    for part in scan(text, 0, len(text), SLICE_BYTES):
        outliner.follow(part)
        yield
    return outliner.outline()


class CutTensor(NamedTuple):
    """A tensor without its data.

    ``number`` is the index of its data among all arrays that were cut out, ``element_count`` follows from its shape.
    """

    tensor: InputTensor
    number: int
    element_count: int


class CutTensors:
    """The tensors whose data was cut out of a document, for conversion after the rest was parsed."""

    def __init__(self, outline: Outline) -> None:
        self._token = outline.token
        self.offset = outline.offset
        self.tensors: list[CutTensor] = []

    def add(self, tensor: InputTensor, stands_in: list[int], count: int) -> bool:
        """Note a tensor; False if this is not what stands in for data."""
        if len(stands_in) != 2 or stands_in[0] != self._token:
            return False
        self.tensors.append(CutTensor(tensor, stands_in[1], count))
        return True
