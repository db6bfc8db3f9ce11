"""A cache of plans by preamble, the part of a request before its tensors: the JSON part, or a gRPC message's first fields.

Clients that send binary tensors repeat their preambles.

In front of ``json.infer_request`` and ``grpc.request`` on the hot path. A hit saves the parsing and the validation of everything but the tensors'
bytes, which is more than half of the codec's cost for a small request.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.inference.validation import Checked
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import SMALL_BYTES, InferPlan, request_like
from pybackend.protocol.json.templates import ANY_ID, ID_AT_START, SECOND_ID, JsonTemplates
from pybackend.protocol.recurring import Recurring
from pybackend_wire.dtypes import ITEMSIZE

LARGEST_PREAMBLE_BYTES = 4096
_SIZE = re.compile(rb'"binary_data_size":( ?(?:0|[1-9][0-9]{0,6}))(?=[,}])')
"""The size of an input's bytes, as usual encoders write it. It begins with fixed bytes, which are found fast."""
_SEQUENCE_ID = re.compile(rb'("sequence_id":) ?(?:([1-9][0-9]{0,17})|"([ !#-\[\]-~]{1,128})")(?=[,}])')
"""A sequence's id, as usual encoders write it: a number, or printable ASCII without escapes."""

MOST_PLANS = 256
"""With the largest preamble this limits a model's plans to 1 MB."""


class PlanCaches:
    """The plan caches of all model versions. A version's plans are dropped with the version."""

    def __init__(self) -> None:
        self._caches: dict[int, PlanCache] = {}

    def of(self, signature: ModelSignature) -> PlanCache:
        """The plans of one version, identified by its signature."""
        key = id(signature)
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = PlanCache()
            weakref.finalize(signature, self._drop, key).atexit = False
        return cache

    def _drop(self, key: int) -> None:
        self._caches.pop(key).clear()  # preambles that clients no longer send may still lead to it


class PlanCache:
    """Validated plans of one model version, by the bytes of their preamble.

    ``templates`` are the plans of requests that are JSON only.
    """

    def __init__(self) -> None:
        self.templates = JsonTemplates()
        self._plans: Recurring[bytes, InferPlan] = Recurring(MOST_PLANS)
        # Plans with strings, by the parts of the preamble between the sizes of their inputs.
        self._unsized: Recurring[tuple[bytes, ...], InferPlan] = Recurring(MOST_PLANS)
        # Plans of requests of sequences, by the preamble without the sequence's id.
        self._of_sequences: Recurring[bytes, InferPlan] = Recurring(MOST_PLANS)

    def clear(self) -> None:
        """Forget all plans."""
        self.templates.clear()
        self._plans.clear()
        self._unsized.clear()
        self._of_sequences.clear()

    def get(self, preamble: bytes) -> InferPlan | None:
        """A private copy of the plan for this preamble, with tensors still without bytes; None if it is not cached."""
        known = self._plans.get(preamble)
        if known is None:
            return None
        inputs = []
        binary = []
        for tensor, size in known.binary_inputs:
            copy = InputTensor(tensor.name, tensor.datatype, tensor.shape)
            inputs.append(copy)
            binary.append((copy, size))
        return InferPlan(
            request_like(known.request, inputs), binary, known.binary_bytes, known.output_format, known.checked
        )

    def learn(self, preamble: bytes, plan: InferPlan) -> None:
        """Store the plan of a JSON part if it is likely to recur, apart from its id at the start and its sequence's id."""
        request = plan.request
        if request.id:
            match = ID_AT_START.match(preamble)
            if match is None or SECOND_ID.search(preamble, match.end()):
                return
            preamble = b"{" + preamble[match.end() :]
        elif ANY_ID.search(preamble):
            return
        sequence_id = request.correlation_id
        if not sequence_id:
            if not request.has_options:
                self.put(preamble, plan)
        elif preamble.count(b"sequence_id") == 1 and not (request.parameters or request.priority or request.timeout_us):
            preamble, found = _without_sequence(preamble)
            if found == sequence_id:
                self.put(preamble, plan, of_sequences=True)

    def filled(self, preamble: bytes, raw: Sequence[Buffer]) -> InferPlan | None:
        """A private copy of the plan for this preamble, with the bytes of its tensors.

        Returns None if the preamble is not cached, or the tensors have other sizes than those for which the plan was
        made.
        """
        known = self._plans.get(preamble)
        if known is None or len(raw) < len(known.binary_inputs):
            return None
        inputs = []
        for (tensor, size), data in zip(known.binary_inputs, raw, strict=False):
            if len(data) != size and ITEMSIZE[tensor.datatype]:
                return None
            inputs.append(InputTensor(tensor.name, tensor.datatype, tensor.shape, data))
        return InferPlan(request_like(known.request, inputs), [], 0, known.output_format, known.checked)

    def whole(self, message: bytes, start: int, end: int) -> InferPlan | None:
        """A private copy of the plan for a JSON part, with the bytes of its tensors, which follow it.

        The message ends with the body; its JSON part may begin with an id and may name any sequence, and inputs of strings may have other sizes. None
        if the JSON part is not cached, or the number of bytes behind it does not fit it.
        """
        preamble = message[start:end]
        known, request_id = self._plans.get(preamble), ""
        sequence_id: int | str = 0
        if known is None:
            match = ID_AT_START.match(preamble)
            if match is not None:
                preamble, request_id = b"{" + preamble[match.end() :], match[1].decode()
                known = self._plans.get(preamble)
            if known is None and self._of_sequences:
                preamble, sequence_id = _without_sequence(preamble)
                if sequence_id:
                    known = self._of_sequences.get(preamble)
            if known is None and self._unsized:
                known = self._sized(preamble, is_of_sequence=bool(sequence_id))
            if known is None:
                return None
        if known.binary_bytes != len(message) - end:
            return None
        inputs = []
        view = None
        for tensor, size in known.binary_inputs:
            start, end = end, end + size
            if size <= SMALL_BYTES:
                data: Buffer = message[start:end]
            else:
                view = view or memoryview(message)
                data = view[start:end]
            inputs.append(InputTensor(tensor.name, tensor.datatype, tensor.shape, data))
        request = request_like(known.request, inputs, request_id)
        if sequence_id:
            request.correlation_id, request.flags = sequence_id, known.request.flags
        return InferPlan(request, [], 0, known.output_format, known.checked)

    def _sized(self, preamble: bytes, *, is_of_sequence: bool) -> InferPlan | None:
        """The plan for a JSON part that is known but for its inputs' sizes."""
        parts = _SIZE.split(preamble)
        known = self._unsized.get(tuple(parts[::2]))
        if known is None or is_of_sequence is not bool(known.request.correlation_id):
            return None
        sizes = [*map(int, parts[1::2])]
        inputs = [(tensor, size) for (tensor, _), size in zip(known.binary_inputs, sizes, strict=True)]
        return InferPlan(known.request, inputs, sum(sizes), known.output_format, known.checked)

    def _put_unsized(self, preamble: bytes, known: InferPlan) -> None:
        """Store a plan with strings, if it is certain which number is the size of which input."""
        parts = _SIZE.split(preamble)
        if (
            b"\\" not in preamble
            and preamble.count(b"binary_data_size") == len(known.binary_inputs)
            and [*map(int, parts[1::2])] == [size for _, size in known.binary_inputs]
        ):
            self._unsized.remember(tuple(parts[::2]), known)

    def put(self, preamble: bytes, plan: InferPlan, *, of_sequences: bool = False) -> None:
        """Store a validated plan, before its tensors get their bytes, if the same preamble is likely to recur.

        The preamble has neither the request's id nor its options; if it is ``of_sequences``, it has the flags, and not the sequence's id. One with data
        cannot be a template. Class labels change with the parts of an ensemble, and regions whenever clients register and unregister them.
        """
        request = plan.request
        if (
            len(preamble) > LARGEST_PREAMBLE_BYTES
            or plan.output_format.classes
            or request.regions is not None
            or len(plan.binary_inputs) != len(request.inputs)
        ):
            return
        inputs = [(InputTensor(each.name, each.datatype, each.shape), size) for each, size in plan.binary_inputs]
        template = request_like(request, [])
        plans = self._plans
        if of_sequences:
            plans = self._of_sequences
            template.correlation_id, template.flags = request.correlation_id, request.flags
        known = InferPlan(template, inputs, plan.binary_bytes, plan.output_format, plan.checked)
        plans.remember(preamble, known)
        if plan.checked is Checked.HEADER:
            self._put_unsized(preamble, known)


def _without_sequence(text: bytes) -> tuple[bytes, int | str]:
    """A JSON part without the id of its sequence, and that id; 0 if it has none, or an unusual one."""
    match = _SEQUENCE_ID.search(text)
    if match is None:
        return text, 0
    _, number, name = match.groups()
    return text[: match.end(1)] + text[match.end() :], int(number) if number else name.decode()
