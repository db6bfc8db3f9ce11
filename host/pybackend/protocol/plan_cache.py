"""A cache of plans by preamble, the part of a request before its tensors: the JSON part, or a gRPC message's first fields.

Clients that send binary tensors repeat their preambles.

In front of ``json.infer_request`` and ``grpc.request`` on the hot path. A hit saves the parsing and the validation of everything but the tensors'
bytes, which is more than half of the codec's cost for a small request.
"""

from __future__ import annotations

import re
import struct
import weakref
from collections.abc import Callable, Sequence

import msgspec

from pybackend.inference.request import PACKED_ALIGNMENT_BYTES, InferenceRequest
from pybackend.inference.tensor import Buffer, InputTensor
from pybackend.inference.validation import Checked
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import SMALL_BYTES, InferPlan, OutputFormat, request_like
from pybackend.protocol.json.templates import ANY_ID, ID_AT_START, SECOND_ID, JsonTemplates
from pybackend.recurring import Recurring
from pybackend_wire.dtypes import ITEMSIZE

LARGEST_PREAMBLE_BYTES = 4096
_SIZE = re.compile(rb'"binary_data_size":( ?(?:0|[1-9][0-9]{0,6}))(?=[,}])')
"""The size of an input's bytes, as usual encoders write it. It begins with fixed bytes, which are found fast."""
_SEQUENCE_ID = re.compile(rb'("sequence_id":) ?(?:([1-9][0-9]{0,17})|"([ !#-\[\]-~]{1,128})")(?=[,}])')
"""A sequence's id, as usual encoders write it: a number, or printable ASCII without escapes."""

MOST_PLANS = 256

_NO_SEQUENCE = "no sequence"
"""The first part of a key that lacks a sequence's id."""


class PlanCaches:
    """The plan caches of all model versions. A version's plans are dropped with the version."""

    def __init__(self) -> None:
        self._caches: dict[int, PlanCache] = {}

    def of(self, signature: ModelSignature) -> PlanCache:
        key = id(signature)
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = PlanCache()
            weakref.finalize(signature, self._drop, key).atexit = False
        return cache

    def _drop(self, key: int) -> None:
        self._caches.pop(key).clear()  # preambles that clients no longer send may still lead to it


class _KnownPlan(msgspec.Struct, eq=False):
    """A validated plan whose inputs have no bytes."""

    request: InferenceRequest  # has everything but the inputs and the id
    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    shapes: tuple[Sequence[int], ...]
    sizes: Sequence[int]
    nbytes: int  # of all inputs
    output_format: OutputFormat
    checked: Checked
    unpack: Callable[[bytes, int], Sequence[Buffer]]  # cuts the inputs out of a message, from an offset on
    # where the inputs lie behind each other; None if they cannot be handed on as they lie
    places: Sequence[tuple[str, str, Sequence[int], int, int]] | None

    def filled(self, data: Sequence[Buffer], request_id: str = "") -> InferPlan:
        """A private copy, with the bytes of the inputs."""
        inputs = [*map(InputTensor, self.names, self.datatypes, self.shapes, data)]
        return InferPlan(request_like(self.request, inputs, request_id), [], 0, self.output_format, self.checked)


class PlanCache:
    """Validated plans of one model version, by the bytes of their preamble, or by the parts of it around what may differ.

    ``templates`` are the plans of requests that are JSON only.
    """

    def __init__(self) -> None:
        self.templates = JsonTemplates()
        self._plans: Recurring[bytes | tuple[bytes | str, ...], _KnownPlan] = Recurring(
            MOST_PLANS, LARGEST_PREAMBLE_BYTES
        )
        self._has_strings = False  # some plans are known whatever the sizes of their inputs are

    def clear(self) -> None:
        self.templates.clear()
        self._plans.clear()

    def get(self, preamble: bytes) -> InferPlan | None:
        """A private copy of the plan for this preamble, with tensors still without bytes; None if it is not cached."""
        known = self._plans.get(preamble)
        if known is None:
            return None
        inputs = [*map(InputTensor, known.names, known.datatypes, known.shapes)]
        binary = [*zip(inputs, known.sizes, strict=True)]
        return InferPlan(request_like(known.request, inputs), binary, known.nbytes, known.output_format, known.checked)

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
        if known is None or len(raw) < len(known.sizes):
            return None
        for datatype, size, data in zip(known.datatypes, known.sizes, raw, strict=False):
            if len(data) != size and ITEMSIZE[datatype]:
                return None
        return known.filled(raw)

    def whole(self, message: bytes, start: int, end: int) -> InferPlan | None:
        """A private copy of the plan for a JSON part, with the bytes of its tensors, which follow it.

        The message ends with the body; its JSON part may begin with an id and may name any sequence, and inputs of
        strings may have other sizes. None if the JSON part is not cached, or the number of bytes behind it does not fit
        it.
        """
        preamble = message[start:end]
        known, request_id = self._plans.get(preamble), ""
        sequence_id: int | str = 0
        if known is None:
            match = ID_AT_START.match(preamble)
            if match is not None:
                preamble, request_id = b"{" + preamble[match.end() :], match[1].decode()
                known = self._plans.get(preamble)
            if known is None and b'"sequence_id"' in preamble:
                preamble, sequence_id = _without_sequence(preamble)
                if sequence_id:
                    known = self._plans.get((_NO_SEQUENCE, preamble))
            if known is None and self._has_strings:
                known = self._sized(preamble, is_of_sequence=bool(sequence_id))
            if known is None:
                return None
        if known.nbytes != len(message) - end:
            return None
        plan = known.filled(known.unpack(message, end), request_id)
        if known.places is not None:
            plan.request.packed = message[end:], known.places
        if sequence_id:
            plan.request.correlation_id, plan.request.flags = sequence_id, known.request.flags
        return plan

    def _sized(self, preamble: bytes, *, is_of_sequence: bool) -> _KnownPlan | None:
        """The plan for a JSON part that is known but for its inputs' sizes."""
        parts = _SIZE.split(preamble)
        known = self._plans.get(tuple(parts[::2]))
        if known is None or is_of_sequence is not bool(known.request.correlation_id):
            return None
        sizes = [*map(int, parts[1::2])]
        for datatype, was, size in zip(known.datatypes, known.sizes, sizes, strict=True):
            if size != was and ITEMSIZE[datatype]:
                return None  # only strings may have another size: it must be checked
        return msgspec.structs.replace(known, sizes=sizes, nbytes=sum(sizes), unpack=_slices_of(sizes), places=None)

    def _put_unsized(self, preamble: bytes, known: _KnownPlan) -> None:
        """Store a plan with strings, if it is certain which number is the size of which input."""
        parts = _SIZE.split(preamble)
        if (
            b"\\" not in preamble
            and preamble.count(b"binary_data_size") == len(known.sizes)
            and [*map(int, parts[1::2])] == known.sizes
        ):
            self._plans.remember(tuple(parts[::2]), known, len(preamble))
            self._has_strings = True

    def put(self, preamble: bytes, plan: InferPlan, *, of_sequences: bool = False) -> None:
        """Store a validated plan, before its tensors get their bytes, if the same preamble is likely to recur.

        The preamble has neither the request's id nor its options; if it is ``of_sequences``, it has the flags, and not
        the sequence's id. One with data cannot be a template. Class labels change with the parts of an ensemble, and
        regions whenever clients register and unregister them.
        """
        request = plan.request
        if (
            len(preamble) > LARGEST_PREAMBLE_BYTES
            or plan.output_format.classes
            or request.regions is not None
            or len(plan.binary_inputs) != len(request.inputs)
        ):
            return
        template = request_like(request, [])
        if of_sequences:
            template.correlation_id, template.flags = request.correlation_id, request.flags
        sizes = [size for _, size in plan.binary_inputs]
        is_small = not sizes or max(sizes) <= SMALL_BYTES
        known = _KnownPlan(
            template,
            tuple([each.name for each in request.inputs]),
            tuple([each.datatype for each in request.inputs]),
            tuple([each.shape for each in request.inputs]),
            sizes,
            plan.binary_bytes,
            plan.output_format,
            plan.checked,
            struct.Struct("".join(f"{size}s" for size in sizes)).unpack_from if is_small else _slices_of(sizes),
            _places_of(plan) if is_small else None,
        )
        self._plans.remember((_NO_SEQUENCE, preamble) if of_sequences else preamble, known, len(preamble))
        if plan.checked is Checked.HEADER:
            self._put_unsized(preamble, known)


def _slices_of(sizes: Sequence[int]) -> Callable[[bytes, int], Sequence[Buffer]]:
    """Cuts tensors of these sizes out of a message: private copies of small ones, and views of large ones."""

    def unpack(message: bytes, at: int) -> Sequence[Buffer]:
        found: list[Buffer] = []
        for size in sizes:
            found.append(message[at : at + size] if size <= SMALL_BYTES else memoryview(message)[at : at + size])
            at += size
        return found

    return unpack


def _places_of(plan: InferPlan) -> Sequence[tuple[str, str, Sequence[int], int, int]] | None:
    """Where the inputs lie behind each other; None if one of them would not be aligned there."""
    places = []
    at = 0
    for tensor, size in plan.binary_inputs:
        if at % PACKED_ALIGNMENT_BYTES:
            return None
        places.append((tensor.name, tensor.datatype, tensor.shape, at, size))
        at += size
    return places


def _without_sequence(text: bytes) -> tuple[bytes, int | str]:
    """A JSON part without the id of its sequence, and that id; 0 if it has none, or an unusual one."""
    match = _SEQUENCE_ID.search(text)
    if match is None:
        return text, 0
    _, number, name = match.groups()
    return text[: match.end(1)] + text[match.end() :], int(number) if number else name.decode()
