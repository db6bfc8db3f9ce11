"""Parses a request with much JSON in steps of a few milliseconds, so that other requests need not wait.

Used by: front ends, for JSON parts above :data:`LARGE_JSON_BYTES`. Requests that do not fit the model are refused
before any tensor data is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from operator import add

from pybackend.inference.region import NO_REGIONS, RegionFinder
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import validate_header
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.json.document import parse_document
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.json.outline import CutTensors, Outline, check_skeleton, outline_in_steps
from pybackend.protocol.json.slices import SlicedData
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
    make_room: Callable[[InputTensor, int], memoryview],
    regions: RegionFinder = NO_REGIONS,
) -> Generator[None, None, InferPlan]:
    """The work of ``parse_infer`` and then ``validate_header``, in steps.

    Args:
        text: the JSON part; it must not change before the end.
        make_room: allocates memory of the given size for a tensor, stores it in the tensor's ``data`` and returns it.

    Raises:
        InferenceError: the errors of both; INVALID_ARG if too much of the JSON is not tensor data.
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
        regions=regions,
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
            yield from _copy(pieces, make_room(each.tensor, sum(map(len, pieces))))
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
