"""The body of an infer request, from bytes to a validated plan; the same for every HTTP implementation in front of it."""

from __future__ import annotations

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.tensor import InputTensor
from pybackend.model.model import Model, ModelState
from pybackend.protocol.infer_plan import InferPlan, attach_blobs, body_size_error
from pybackend.protocol.infer_request import parse_header_length, parse_infer
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache
from pybackend.protocol.raw_request import parse_raw
from pybackend.protocol.validation import validate, validate_bytes_tensors, validate_header
from pybackend_wire.messages import INLINE_BYTES

SMALL_BODY_BYTES = 64 * 1024
"""Bodies up to this size are collected and decoded at once; larger ones go straight to where their tensors belong."""


def check_model(model: Model) -> None:
    """Refuse a model whose responses this endpoint has no form for.

    Raises:
        InferenceError: UNSUPPORTED.
    """
    if model.config.decoupled:
        raise InferenceError(
            "HTTP end point doesn't support models with decoupled transaction policy: call it from another model with "
            "exec(decoupled=True)",
            ErrorCode.UNSUPPORTED,
        )


def check_encoding(encoding: str) -> None:
    """Refuse a body that is compressed.

    Args:
        encoding: value of ``Content-Encoding``; empty if there is none.

    Raises:
        InferenceError: UNSUPPORTED.
    """
    if encoding.lower() not in {"", "identity"}:
        raise InferenceError(
            "Unsupported compression type: this server takes request bodies without content-encoding only",
            ErrorCode.UNSUPPORTED,
        )


def decode_body(
    body: bytes, header_length: bytes | None, model: Model, limits: BodyLimits, plans: PlanCache
) -> InferPlan:
    """The validated request of a whole body.

    Args:
        body: as it arrived.
        header_length: the value of ``Inference-Header-Content-Length``, None if the client sent none.
        model: what the request is held against.
        limits: bounds of JSON and raw bodies.
        plans: of this model.

    Raises:
        InferenceError: see the catalogue of bad input.
    """
    length = len(body)
    json_length = None if header_length is None else parse_header_length(header_length, length)
    if json_length:
        return _decode_binary(body, json_length, model, limits, plans)
    signature = model.signature
    if json_length == 0 or not body:
        plan = parse_raw(body, signature, model_version=model.version, limits=limits)
    else:
        plan = parse_infer(
            body, header_length=None, signature=signature, model_version=model.version, limits=limits, available_bytes=0
        )
    validate(plan.request, signature)
    return plan


def _decode_binary(body: bytes, json_length: int, model: Model, limits: BodyLimits, plans: PlanCache) -> InferPlan:
    """A JSON part and binary tensors behind it."""
    signature = model.signature
    header = body[:json_length]
    available = len(body) - json_length
    plan = plans.get(header)
    if plan is None or plan.binary_bytes != available:
        plan = parse_infer(
            header,
            header_length=json_length,
            signature=signature,
            model_version=model.version,
            limits=limits,
            available_bytes=available,
        )
        validate_header(plan.request, signature, plan.binary_inputs)
        plans.put(header, plan)
    attach_blobs(plan, body, json_length)
    validate_bytes_tensors(plan.request, signature)
    return plan


class StreamedBody:
    """A large body, or one of unknown length, taken as it arrives.

    The JSON part is collected; once it is complete and valid, each binary tensor's bytes are written where they will
    stay: input memory is leased when the first byte of a tensor is there, not when it is announced.
    """

    def __init__(
        self, model: Model, header_length: bytes | None, content_length: int | None, limits: BodyLimits
    ) -> None:
        """Check what the header fields already tell.

        Raises:
            InferenceError: they are malformed, or announce too much.
        """
        self._model = model
        self._limits = limits
        self._content_length = content_length
        self._header_length = header_length
        bound = 2**62 if content_length is None else content_length
        self._json_length = None if header_length is None else parse_header_length(header_length, bound)
        self._collected = bytearray()
        self._plan: InferPlan | None = None
        self._open: list[tuple[InputTensor, int]] = []
        self._room: memoryview | None = None
        self._check_collected(content_length or 0)

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            InferenceError: they make the request invalid, or there is no memory for them.
        """
        if self._plan is None:
            if not self._json_length:
                self._check_collected(len(self._collected) + len(data))
                self._collected += data
                return
            missing = self._json_length - len(self._collected)
            self._collected += data[:missing]
            if len(self._collected) < self._json_length:
                return
            self._plan_tensors()
            data = data[missing:]
        view = memoryview(data)
        while view:
            room = self.room()
            if room is None:
                assert self._plan is not None
                raise InferenceError(
                    f"unexpected additional input data for model '{self._model.name}'", ErrorCode.INVALID_ARG
                )
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.advance(count)
            view = view[count:]

    def room(self) -> memoryview | None:
        """Where the next bytes belong; None while the JSON part is incomplete, and after the last tensor.

        Raises:
            InferenceError: UNAVAILABLE, the model's input memory is used up.
        """
        while self._room is None and self._open:
            tensor, size = self._open[0]
            if size > INLINE_BYTES and self._model.state is ModelState.READY:
                lease = self._model.lease(size, tensor.name)
                tensor.lease, tensor.data = lease, lease.view
                self._room = lease.view
            elif size:
                tensor.data = bytearray(size)
                self._room = memoryview(tensor.data)
            else:
                tensor.data = b""
                del self._open[0]
        return self._room

    def advance(self, count: int) -> None:
        """Note that this many bytes were written to :meth:`room`."""
        assert self._room is not None
        if count < len(self._room):
            self._room = self._room[count:]
        else:
            self._room = None
            del self._open[0]

    def finish(self, model: Model) -> InferPlan:
        """The validated request, once the whole body is there.

        Args:
            model: what it is for now: it may have been replaced since the body began.

        Raises:
            InferenceError: see the catalogue of bad input.
        """
        if self._plan is None:
            # No binary part: what is here is all there is, and the codec finds the words for what is missing.
            return decode_body(bytes(self._collected), self._header_length, model, self._limits, PlanCache())
        if self.room() is not None:
            received = self._plan.binary_bytes - sum(size for _, size in self._open[1:]) - len(self._room or b"")
            raise body_size_error(self._plan.binary_inputs, received, self._model.name)
        request = self._plan.request
        if model is self._model:
            validate_bytes_tensors(request, model.signature)
        else:
            request.leave()
            request.model_version = model.version
            validate(request, model.signature)
        return self._plan

    def release(self) -> None:
        """Give all memory back; for a request that will not be submitted."""
        self._open, self._room = [], None
        if self._plan is not None:
            self._plan.request.release()

    def _plan_tensors(self) -> None:
        assert self._json_length
        available = None if self._content_length is None else self._content_length - self._json_length
        plan = parse_infer(
            bytes(self._collected),
            header_length=self._json_length,
            signature=self._model.signature,
            model_version=self._model.version,
            limits=self._limits,
            available_bytes=available,
        )
        validate_header(plan.request, self._model.signature, plan.binary_inputs)
        self._collected.clear()
        self._plan, self._open = plan, list(plan.binary_inputs)

    def _check_collected(self, total_bytes: int) -> None:
        """Refuse early what the codec would refuse when it is complete."""
        if self._json_length:
            self._limits.check_json(self._json_length)
        elif self._json_length == 0:
            self._limits.check_raw(total_bytes)
        else:
            self._limits.check_json(total_bytes)
