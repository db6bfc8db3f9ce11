"""Parses a request with much JSON in steps of a few milliseconds, so that other requests need not wait.

Used by: front ends, for JSON parts above :data:`LARGE_JSON_BYTES`. Requests that do not fit the model are refused
before any tensor data is converted, in slices that are cut at a comma and parsed separately.
"""

from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise
from operator import add

import msgspec
import numpy as np

from pybackend.errors import InferenceError, invalid
from pybackend.inference.region import FindRegion, no_region
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import validate_header
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.json.document import MAX_NESTING, parse_document, type_error
from pybackend.protocol.json.infer_document import (
    check_values,
    flatten,
    missing_elements_error,
    of_input,
    surplus_elements_error,
)
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.json.outline import CutTensors, Outline, check_skeleton, outline_in_steps
from pybackend.protocol.json.scan import scan
from pybackend.protocol.json.slices import SLICE_BYTES
from pybackend.protocol.json.tensor import decode_list, encode_values, opening_depth
from pybackend.protocol.limits import BodyLimits
from pybackend_wire.dtypes import ITEMSIZE

LARGE_JSON_BYTES = 256 * 1024
_COPIED_PER_STEP = 4 * 1024 * 1024


def parse_large(
    text: bytearray,
    *,
    header_length: int | None,
    signature: ModelSignature,
    model_version: str,
    limits: BodyLimits,
    available_bytes: int | None,
    room_for: Callable[[InputTensor, int], memoryview],
    find_region: FindRegion = no_region,
) -> Generator[None, None, InferPlan]:
    """The work of ``parse_infer`` and then ``validate_header``, in steps.

    The ``text`` must not change before the end. ``room_for`` stores memory of the given size in a tensor's ``data``
    and returns it.
    """
    limits.check_json(len(text))
    outline = yield from outline_in_steps(text)
    cut_tensors = CutTensors(outline)
    plan = parse_infer(
        outline.skeleton,
        header_length=header_length and len(outline.skeleton),
        signature=signature,
        model_version=model_version,
        limits=limits,
        available_bytes=available_bytes,
        cut_tensors=cut_tensors,
        find_region=find_region,
    )
    _check_unclaimed(text, outline, cut_tensors)
    yield
    sizes = dict(plan.binary_inputs) | {
        each.tensor: each.element_count * ITEMSIZE[each.tensor.datatype] for each in cut_tensors.tensors
    }
    announced = [(tensor, sizes[tensor]) for tensor in plan.request.inputs if tensor.data is None]
    validate_header(plan.request, signature, announced)
    try:
        for each in cut_tensors.tensors:
            span = outline.spans[each.number]
            data = SlicedData(text, span, each.tensor.name, each.tensor.datatype, each.element_count)
            pieces = yield from data.encode_in_steps(limits)
            yield from _copy(pieces, room_for(each.tensor, sum(map(len, pieces))))
    except BaseException:  # including GeneratorExit, when the request is abandoned
        plan.request.release()
        raise
    return plan


def _check_unclaimed(text: bytearray, outline: Outline, cut_tensors: CutTensors) -> None:
    """Check that data outside the inputs is JSON too: the data of an output, or of a key that comes twice."""
    claimed = {each.number for each in cut_tensors.tensors}
    unclaimed = [span for number, span in enumerate(outline.spans) if number not in claimed]
    check_skeleton(len(outline.skeleton) + sum(end - begin for begin, end in unclaimed))
    for begin, end in unclaimed:
        parse_document(bytes(text[begin:end]), partial(add, begin))


def _copy(pieces: list[bytes], room: memoryview) -> Generator[None, None, None]:
    at = since = 0
    for piece in pieces:
        room[at : at + len(piece)] = piece
        at += len(piece)
        since += len(piece)
        if since >= _COPIED_PER_STEP:
            since = 0
            yield


LONGEST_NUMBER_BYTES = 64 * 1024

_SPACES = b" \t\r\n"
_MOST_DEPTH = MAX_NESTING + 1


class SlicedData:
    """One ``data`` member.

    ``span`` includes the brackets. ``count`` is the number of elements: before encoding by the shape, None if the
    data has its own (see :attr:`shape`).
    """

    def __init__(
        self, text: bytes | bytearray, span: tuple[int, int], name: str, datatype: str, count: int | None
    ) -> None:
        self._text = text
        self._begin, self._end = span
        self._name = name
        self._datatype = datatype
        self._expected = count
        self.count = 0
        self._opened = np.zeros(_MOST_DEPTH, np.int64)
        self._nesting = opening_depth(bytes(text[self._begin : self._begin + 256]))
        self._depth = 0
        self._last = b""

    def encode_in_steps(self, limits: BodyLimits) -> Generator[None, None, list[bytes]]:
        """The tensor's wire bytes, in pieces."""
        try:
            return (yield from self._pieces(limits))
        except InferenceError as error:
            raise of_input(error, self._name) from None

    def _pieces(self, limits: BodyLimits) -> Generator[None, None, list[bytes]]:
        wire: list[bytes] = []
        expected, wire_bytes = self._expected, 0
        at = self._begin
        while at < self._end:
            cut, depth = yield from self._cut_in_steps(at)
            count, encoded = self._encode(at, cut, depth)
            self._depth = depth
            self.count += count
            if expected is not None and self.count > expected:
                raise surplus_elements_error(self._datatype, expected)
            wire_bytes += len(encoded)
            limits.check_json_tensor(self._name, wire_bytes)
            wire.append(encoded)
            at = cut + 1
            yield
        if expected is not None and self.count < expected:
            raise missing_elements_error(expected)
        return wire

    @property
    def shape(self) -> list[int]:
        """The shape of nested lists, by the number of lists at each depth.

        As in infer, nobody asks for equal lengths.
        """
        counts = [*self._opened[1 : self._nesting + 1].tolist(), self.count]
        return [len_ // max(above, 1) for above, len_ in pairwise(counts)]

    def _cut_in_steps(self, begin: int) -> Generator[None, None, tuple[int, int]]:
        """The place of a comma between two elements, or the end; and the depth there."""
        depth = self._depth
        for part in scan(self._text, begin, self._end, SLICE_BYTES, depth):
            is_last = part.end == self._end
            comma = -1 if is_last else part.plain.rfind(b",")
            count, depth = part.before(len(part.plain) if comma < 0 else comma)
            if self._expected is None:
                opened = part.depths[:count][part.opens[:count]]
                self._opened += np.bincount(np.clip(opened, 0, _MOST_DEPTH - 1), minlength=_MOST_DEPTH)
            if comma >= 0:
                return part.begin + comma, depth
            if is_last:
                break
            if self._datatype != "BYTES" and part.end - begin >= LONGEST_NUMBER_BYTES:
                raise invalid(
                    f"input '{self._name}' has a value of {LONGEST_NUMBER_BYTES} bytes or more, and numbers never take so much"
                )
            yield  # within one long text
        return self._end, depth

    def _encode(self, begin: int, end: int, depth: int) -> tuple[int, bytes]:
        """How many elements a slice has, and their wire bytes."""
        part = bytes(self._text[begin:end])
        whole = b"[" * self._depth + part + b"]" * depth
        last, self._last = self._last, part.rstrip(_SPACES)[-1:]
        if end < self._end and self._last in {b"[", b""}:
            raise _no_value_error(end)
        is_first = begin == self._begin
        try:
            if is_first or self._goes_on(begin, last, part):
                values = decode_list(self._datatype, self._nesting, whole)
                return len(values), encode_values(self._datatype, values)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            pass
        document = parse_document(whole, partial(add, begin - self._depth))
        if not is_first and not self._goes_on(begin, last, part):
            check_values(self._datatype, [[]])  # an array where an element was to be
            raise type_error("data", "non-array as array")
        values = []
        flatten(document, 1, values)
        check_values(self._datatype, values)
        return len(values), encode_values(self._datatype, values)

    def _goes_on(self, begin: int, last: bytes, part: bytes) -> bool:
        """True if the element behind a comma is of the same kind as the one before: an array, or none."""
        first = part.lstrip(_SPACES)[:1]
        if first in {b"]", b""}:
            raise _no_value_error(begin)
        return (last == b"]") == (first == b"[")


def _no_value_error(place: int) -> InferenceError:
    """The error for a comma without an element on one side."""
    return InferenceError(f"failed to parse the request JSON buffer: Invalid value. at {place}")
