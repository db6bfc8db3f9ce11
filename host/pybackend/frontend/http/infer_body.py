"""The body of an infer request, from bytes to a validated plan, independent of the HTTP implementation."""

from collections import deque
from collections.abc import Callable
from functools import partial

from pybackend.engine.admission import ClientAdmission, Sender
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.compression import BrokenStreamError, Coding, Inflater
from pybackend.frontend.http.body import Body
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import (
    Checked,
    validate_bytes_in_steps,
    validate_header,
)
from pybackend.protocol.arriving_tensors import ArrivingTensors, make_room
from pybackend.protocol.infer_plan import InferPlan, attach_blobs, body_size_error
from pybackend.protocol.json.infer_request import parse_header_length, parse_infer, parse_raw
from pybackend.protocol.json.large_request import LARGE_JSON_BYTES, parse_large
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache
from pybackend.protocol.steps import Steps

SMALL_BODY_BYTES = 64 * 1024
"""Bodies up to this size are collected and decoded at once; larger ones go directly to their tensors' memory."""


def _refuse_stream(_model_name: str) -> InferenceError:
    return InferenceError(
        "HTTP end point doesn't support models with decoupled transaction policy: send the request to "
        "its generate_stream route, or call it from another model with exec(decoupled=True)",
        ErrorCode.UNSUPPORTED,
    )


HTTP_CLIENT = Sender("http", refuse_stream=_refuse_stream)
"""The policy of the infer routes, which allow one response each."""


def decode_body(
    body: bytes, header_length: bytes | None, admission: ClientAdmission, limits: BodyLimits, plans: PlanCache | None
) -> InferPlan:
    """The request in a complete body.

    ``header_length`` is the value of ``Inference-Header-Content-Length``. There are no plans if nothing is remembered.

    Raises:
        InferenceError: the request is invalid.
    """
    length = len(body)
    json_length = None if header_length is None else parse_header_length(header_length, length)
    if json_length:
        return _decode_binary(body, json_length, admission, limits, plans)
    signature, version = admission.signature, admission.model_version
    if json_length == 0 or not body:
        return parse_raw(body, signature, model_version=version, limits=limits)
    limits.check_json(length)
    known = None if plans is None else plans.templates.filled(body)
    if known is not None:
        return known
    plan = _parsed(body, None, admission, limits, 0)
    if plans is not None:
        plans.templates.learn(body, plan, signature, limits)
    return plan


def _decode_binary(
    body: bytes, json_length: int, admission: ClientAdmission, limits: BodyLimits, plans: PlanCache | None
) -> InferPlan:
    """A JSON part followed by binary tensors."""
    known = None if plans is None else plans.whole(body, 0, json_length)
    if known is not None:
        return known
    header = body[:json_length]
    plan = _parsed(header, json_length, admission, limits, len(body) - json_length)
    if plans is not None:
        plans.learn(header, plan)
    attach_blobs(plan, body, json_length)
    return plan


def _parsed(
    text: bytes, json_length: int | None, admission: ClientAdmission, limits: BodyLimits, available_bytes: int | None
) -> InferPlan:
    """The plan in a JSON part that is not large. It is checked against the signature if binary tensors may follow."""
    signature = admission.signature
    plan = parse_infer(
        text,
        header_length=json_length,
        signature=signature,
        model_version=admission.model_version,
        limits=limits,
        available_bytes=available_bytes,
        find_region=admission.find_region,
    )
    if json_length is not None:
        plan.checked = validate_header(plan.request, signature, plan.binary_inputs)
    return plan


class StreamedBody(Body[InferPlan]):
    """A large body, or one of unknown length, processed as it arrives.

    The JSON part is collected. Once it is complete and valid, each binary tensor's bytes are written to their final
    place: input memory is leased when a tensor's first byte arrives, not when the tensor is announced.

    A chunked body has no content length. ``on_shortage`` is called when the model has no memory left; it returns True
    if some may be available now.
    """

    def __init__(
        self,
        admission: ClientAdmission,
        header_length: bytes | None,
        content_length: int | None,
        limits: BodyLimits,
        on_shortage: Callable[[], bool] = lambda: False,
    ) -> None:
        self._admission = admission
        self._limits = limits
        self._on_shortage = on_shortage
        self._tensors = ArrivingTensors(partial(admission.allocate, arriving=True), on_shortage)
        self._content_length = content_length
        self._header_length = header_length
        bound = 2**62 if content_length is None else content_length
        self._json_length = None if header_length is None else parse_header_length(header_length, bound)
        self._rest = bytearray()  # was fed while there was work
        self._collected = bytearray()
        self._plan: InferPlan | None = None
        self._waiting: deque[tuple[InputTensor, int]] = deque()
        self._check_collected(content_length or 0)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if self.work is not None:
            self._rest += data
            return
        if self._plan is None:
            if not self._json_length:
                self._check_collected(len(self._collected) + len(data))
                self._collected += data
                return
            missing = self._json_length - len(self._collected)
            self._collected += data[:missing]
            if len(self._collected) < self._json_length:
                return
            data = data[missing:]
            if self._json_length > LARGE_JSON_BYTES:
                self._rest += data
                self.work = self._plan_in_steps()
                return
            self._plan_tensors()
        view = memoryview(data)
        while view:
            if self.room() is None:
                raise InferenceError(
                    f"unexpected additional input data for model '{self._admission.model_name}'", ErrorCode.INVALID_ARG
                )
            view = view[self._tensors.feed(view) :]

    def room(self) -> memoryview | None:
        if self.work is not None:
            return None
        tensors = self._tensors
        while tensors.room is None and self._waiting:
            tensors.begin(*self._waiting.popleft())
        return tensors.room

    def stored(self, count: int) -> None:
        self._tensors.stored(count)

    @property
    def private_bytes(self) -> int:
        return len(self._collected) + len(self._rest) + self._tensors.private_bytes

    def complete(self) -> None:
        if self._plan is None:
            self._admission.renew()
            if self._json_length is None and len(self._collected) > LARGE_JSON_BYTES:
                self._content_length = len(self._collected)
                self.work = self._plan_in_steps()
        elif self.room() is None and self._admission.is_current:
            self.work = self._check_in_steps(self._plan)

    def _check_in_steps(self, plan: InferPlan) -> Steps[None]:
        yield from validate_bytes_in_steps(plan.request, self._admission.signature)
        plan.checked = Checked.ALL

    def finish(self) -> InferPlan:
        if self._plan is None:
            # No binary part: the body is complete, and the codec reports missing parts.
            return decode_body(bytes(self._collected), self._header_length, self._admission, self._limits, PlanCache())
        if self.room() is not None:
            received = self._plan.binary_bytes - sum(size for _, size in self._waiting) - self._tensors.left_bytes
            raise body_size_error(self._plan.binary_inputs, received, self._admission.model_name)
        return self._plan

    def release(self) -> None:
        self.work = None
        self._waiting.clear()
        self._tensors.release()
        self._collected, self._rest = bytearray(), bytearray()
        self._admission.release()

    def _room_for(self, tensor: InputTensor, nbytes: int) -> memoryview:
        return make_room(tensor, nbytes, self._admission.allocate, self._on_shortage)

    def _plan_in_steps(self) -> Steps[None]:
        text, json_length = self._collected, self._json_length
        available = None if self._content_length is None else self._content_length - len(text)
        plan = yield from parse_large(
            text,
            header_length=json_length,
            signature=self._admission.signature,
            model_version=self._admission.model_version,
            limits=self._limits,
            available_bytes=available,
            room_for=self._room_for,
            find_region=self._admission.find_region,
        )
        self._collected, rest, self._rest = bytearray(), self._rest, bytearray()
        plan.checked = Checked.HEADER if plan.binary_inputs else Checked.ALL  # the codec has made the bytes itself
        self._plan = plan
        self._waiting.extend(plan.binary_inputs)
        self.work = None
        self.feed(rest)

    def _plan_tensors(self) -> None:
        assert self._json_length
        available = None if self._content_length is None else self._content_length - self._json_length
        plan = _parsed(bytes(self._collected), self._json_length, self._admission, self._limits, available)
        self._collected.clear()
        self._plan = plan
        self._waiting.extend(plan.binary_inputs)

    def _check_collected(self, total_bytes: int) -> None:
        """Apply the codec's size limits early."""
        if self._json_length:
            self._limits.check_json(self._json_length)
        elif self._json_length == 0:
            self._limits.check_raw(total_bytes)
        else:
            self._limits.check_json(total_bytes)


class CompressedBody(Body[InferPlan]):
    """Stands in front of a :class:`StreamedBody`, and is used as one, except that nothing is received into it directly."""

    def __init__(self, body: StreamedBody, coding: Coding, limits: BodyLimits) -> None:
        self._body = body
        self._inflater = Inflater(coding, limits)

    def feed(self, data: bytes) -> None:
        self._inflater.feed(data)
        if self.work is None:
            piece = self._step()
            if piece is not None:
                self._body.feed(piece)
            if self._body.work is not None or not self._inflater.is_idle:
                self.work = self._pass_on()

    def _pass_on(self) -> Steps[None]:
        body = self._body
        while True:
            while body.step():
                yield
            piece = self._step()
            if piece is None:
                return
            body.feed(piece)
            yield

    def _step(self) -> bytes | None:
        try:
            return self._inflater.step()
        except BrokenStreamError as error:
            raise _refusal(error) from None

    @property
    def private_bytes(self) -> int:
        return self._inflater.waiting_bytes + self._body.private_bytes

    def complete(self) -> None:
        try:
            self._inflater.finish()
        except BrokenStreamError as error:
            raise _refusal(error) from None
        self._body.complete()
        if self._body.work is not None:
            self.work = self._pass_on()

    def finish(self) -> InferPlan:
        return self._body.finish()

    def release(self) -> None:
        self.work = None
        self._inflater.clear()
        self._body.release()


def _refusal(error: BrokenStreamError) -> InferenceError:
    return InferenceError(f"the body cannot be decompressed: {error}", ErrorCode.INVALID_ARG)
