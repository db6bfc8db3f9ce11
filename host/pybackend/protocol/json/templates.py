"""A cache of plans of requests that are JSON only: clients repeat all of it but the tensors' data.

In front of ``infer_request`` on the hot path. A template is everything between the arrays of data. A document that has
the same, and in whose arrays are as many numbers of the right kind, differs from one that was parsed and validated in
nothing but these numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked, validate_header
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import InferPlan, OutputFormat, request_like
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.json.outline import CutTensors, outline_in_steps
from pybackend.protocol.json.tensor import array_decoder, opening_depth, packer
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.steps import at_once
from pybackend.recurring import Recurring
from pybackend_wire.dtypes import ITEMSIZE

LARGEST_DOCUMENT_BYTES = 64 * 1024
"""Longer documents are mostly numbers, and a template saves little of their cost."""
LARGEST_TEMPLATE_BYTES = 8192
MOST_STARTS, MOST_WITH_ONE_START = 256, 8
"""All templates with one start are together no larger than the largest one alone."""
MOST_SKIPPED = 1024
"""After failures to make a template, up to this many other documents are not tried: some clients send only text."""

_DATA, _DATA_BYTES = b'"data":', 7

ID_AT_START = re.compile(rb'\{"id": ?"([ !#-\[\]-~]{1,128})", ?(?=")')
"""The id, of printable ASCII without escapes; the match ends before the next key."""
ANY_ID = re.compile(rb'"id"[ \t\r\n]*:|\\')
"""A JSON part that has an id, perhaps an empty one, contains one of these. Only those without are remembered as they
are: with an id before it, such a JSON part would have two."""
SECOND_ID = re.compile(rb'"id"|\\')
"""A second id behind the first contains one of these. The last id counts, so such JSON parts are not remembered."""


class _TemplateInput(NamedTuple):
    """An input, and how its array of data becomes bytes."""

    name: str
    datatype: str
    shape: list[int]
    element_count: int
    decode: Callable[[bytes], list[Any]]
    pack: Callable[..., bytes]
    after: bytes


class _Template(NamedTuple):
    request: InferenceRequest
    output_format: OutputFormat
    inputs: list[_TemplateInput]
    nbytes: int  # of all that is not data

    def filled(self, document: bytes, begin: int, request_id: str) -> InferPlan | None:
        """The plan of a document; None if it does not fit."""
        inputs = []
        try:
            for name, datatype, shape, count, decode, pack, after in self.inputs:
                end = document.find(after, begin)
                if end < 0:
                    return None
                values = decode(document[begin:end])
                if len(values) != count:
                    return None
                inputs.append(InputTensor(name, datatype, shape, pack(*values)))
                begin = end + len(after)
        except (ValueError, OverflowError, struct.error):  # msgspec's errors are ValueErrors
            return None
        if begin != len(document):
            return None
        return InferPlan(request_like(self.request, inputs, request_id), [], 0, self.output_format, Checked.ALL)


class JsonTemplates:
    """Templates of one model version, by their start: all that precedes the first array, without an id."""

    def __init__(self) -> None:
        self._templates: Recurring[bytes, list[_Template]] = Recurring(MOST_STARTS, LARGEST_TEMPLATE_BYTES)
        self._skipped = self._to_skip = 0

    def clear(self) -> None:
        """Forget all templates."""
        self._templates.clear()

    def filled(self, document: bytes) -> InferPlan | None:
        """The plan of a document, completely checked.

        None if no template fits, or the document is unusual or invalid.
        """
        begin = document.find(_DATA) + _DATA_BYTES
        start, request_id = document[:begin], ""
        templates = self._templates.get(start)
        if templates is None:
            match = ID_AT_START.match(start)
            templates = self._templates.get(b"{" + start[match.end() :]) if match else None
            if match is None or templates is None:
                return None
            request_id = match[1].decode()
        for template in templates:
            plan = template.filled(document, begin, request_id)
            if plan is not None:
                return plan
        return None

    def learn(self, document: bytes, plan: InferPlan, signature: ModelSignature, limits: BodyLimits) -> None:
        """Make a template of a document that comes again: with other data, but the same start and shapes."""
        if self._to_skip:
            self._to_skip -= 1
            return
        request = plan.request
        if (
            len(document) > LARGEST_DOCUMENT_BYTES
            or request.has_options
            or request.regions is not None
            or plan.output_format.classes
        ):
            return
        match = ID_AT_START.match(document) if request.id else None
        if ANY_ID.search(document) if match is None else SECOND_ID.search(document, match.end()):
            return
        end = document.find(_DATA) + _DATA_BYTES
        start = document[:end] if match is None else b"{" + document[match.end() : end]
        if end > LARGEST_TEMPLATE_BYTES:
            return
        if not self._templates.comes_again((start, *[tuple(each.shape) for each in request.inputs])):
            return
        template = _template_of(document, end, signature, plan, limits)
        if template is None:
            self._to_skip = self._skipped = min(2 * self._skipped + 1, MOST_SKIPPED)
        else:
            self._skipped = 0
            self._put(start, template)

    def _put(self, start: bytes, template: _Template) -> None:
        kept = [*self._templates.get(start, ()), template][-MOST_WITH_ONE_START:]
        while sum(each.nbytes for each in kept) > LARGEST_TEMPLATE_BYTES:
            del kept[0]
        self._templates.remember(start, kept, sum(each.nbytes for each in kept))


def _template_of(
    document: bytes, first: int, signature: ModelSignature, plan: InferPlan, limits: BodyLimits
) -> _Template | None:
    """A template of a document; None if its arrays cannot be told from the rest with certainty, or are no numbers.

    The parser itself says which array belongs to which input: it reads the document again with others in their places.
    """
    outline = at_once(outline_in_steps(document))
    start, *others = outline.around(document)
    cut_tensors = CutTensors(outline)
    try:
        outlined = parse_infer(
            outline.skeleton,
            header_length=None,
            signature=signature,
            model_version=plan.request.model_version,
            limits=limits,
            available_bytes=0,
            cut_tensors=cut_tensors,
        )
        found = cut_tensors.tensors
        sizes = [(each.tensor, each.element_count * ITEMSIZE[each.tensor.datatype]) for each in found]
        if (
            len(outline.skeleton) > LARGEST_TEMPLATE_BYTES
            or not found
            or [each.tensor for each in found] != outlined.request.inputs
            or [each.number for each in found] != list(range(len(outline.spans)))
            or start.rstrip() != document[:first]
            or validate_header(outlined.request, signature, sizes) is not Checked.ALL
        ):
            return None
    except InferenceError:
        return None
    inputs = []
    for (tensor, _, count), (begin, end), after in zip(found, outline.spans, others, strict=True):
        pack = packer(tensor.datatype, count)
        if pack is None:
            return None
        decode = array_decoder(tensor.datatype, opening_depth(document[begin:end]))
        inputs.append(_TemplateInput(tensor.name, tensor.datatype, list(tensor.shape), count, decode, pack, after))
    template = _Template(request_like(outlined.request, []), plan.output_format, inputs, len(outline.skeleton))
    again = template.filled(document, first, plan.request.id)
    if again is None or [each.data for each in again.request.inputs] != [each.data for each in plan.request.inputs]:
        return None
    return template
