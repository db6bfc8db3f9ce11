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
_SIZE = re.compile(rb'(?<="binary_data_size":)( ?(?:0|[1-9][0-9]{0,6}))(?=[,}])')
"""The size of an input's bytes, as usual encoders write it."""

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

    def clear(self) -> None:
        """Forget all plans."""
        self.templates.clear()
        self._plans.clear()
        self._unsized.clear()

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
        """Store the plan of a JSON part if it is likely to recur, apart from its id."""
        if plan.request.id:
            self.put_with_id(preamble, plan)
        elif not ANY_ID.search(preamble):
            self.put(preamble, plan)

    def put_with_id(self, preamble: bytes, plan: InferPlan) -> None:
        """As :meth:`put`, for a JSON part that begins with an id. The rest of it, which is likely to recur, is kept as if there were no id."""
        match = ID_AT_START.match(preamble)
        if match and not plan.request.has_options and not SECOND_ID.search(preamble, match.end()):
            self.put(b"{" + preamble[match.end() :], plan, whole=False)

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

        The message ends with the body; its JSON part may begin with an id, and inputs of strings may have other sizes. None if the JSON part is
        not cached, or the number of bytes behind it does not fit it.
        """
        preamble = message[start:end]
        known, request_id = self._plans.get(preamble), ""
        if known is None:
            match = ID_AT_START.match(preamble)
            if match is not None:
                preamble, request_id = b"{" + preamble[match.end() :], match[1].decode()
                known = self._plans.get(preamble)
            if known is None and self._unsized:
                known = self._sized(preamble)
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
        return InferPlan(request_like(known.request, inputs, request_id), [], 0, known.output_format, known.checked)

    def _sized(self, preamble: bytes) -> InferPlan | None:
        """The plan for a JSON part that is known but for its inputs' sizes."""
        parts = _SIZE.split(preamble)
        known = self._unsized.get(tuple(parts[::2]))
        if known is None:
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

    def put(self, preamble: bytes, plan: InferPlan, *, whole: bool = True) -> None:
        """Store a validated plan, before its tensors get their bytes, if the same preamble is likely to recur.

        A preamble with an id or parameters probably differs each time, and one with data cannot be a template. Class
        labels change with the parts of an ensemble, and regions whenever clients register and unregister them. If not
        ``whole``, the request's id and options came apart from the preamble.
        """
        request = plan.request
        if (
            len(preamble) > LARGEST_PREAMBLE_BYTES
            or (whole and (request.id or request.has_options))
            or plan.output_format.classes
            or request.regions is not None
            or len(plan.binary_inputs) != len(request.inputs)
        ):
            return
        inputs = [(InputTensor(each.name, each.datatype, each.shape), size) for each, size in plan.binary_inputs]
        template = request_like(request, [])
        known = InferPlan(template, inputs, plan.binary_bytes, plan.output_format, plan.checked)
        self._plans.remember(preamble, known)
        if plan.checked is Checked.HEADER:
            self._put_unsized(preamble, known)
