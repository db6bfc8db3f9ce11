"""The fast path of a gRPC port: all that it remembers of recurring calls of ``ModelInfer``, and their way to the engine.

Clients send the same message with other tensors and perhaps another id. A known message is submitted at once, without protobuf,
admission and validation, and a small answer is put together from parts that recur. Everything else takes the ordinary way, which
gives the same answers. Without this module (``--no-fast-paths``) all calls do, and the connections of HTTP/2 remember no heads.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Any, NamedTuple

from pybackend.engine.admission import Admission, Route
from pybackend.errors import InferenceError
from pybackend.frontend.grpc.call_connection import CallConnection
from pybackend.frontend.grpc.errors import HEAD, INTERNAL, OK_TRAILERS
from pybackend.frontend.grpc.framing import PREFIX, PREFIX_BYTES
from pybackend.frontend.grpc.frontend import GrpcFrontend, Memory
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.grpc.infer_call import InferCall
from pybackend.frontend.http2 import AnswerForm, RequestHead, Stream
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked
from pybackend.protocol.grpc.layouts import MessageLayout
from pybackend.protocol.grpc.response import id_field, message_format
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, request_like
from pybackend.protocol.recurring import Recurring

log = logging.getLogger(__name__)

MOST_FORMS, LONGEST_FORM_BYTES = 512, 4096
"""Limits of the memory of answers, a few MB in all: stubs choose the names of outputs."""

_kind, _shape, _data = attrgetter("name", "datatype"), attrgetter("shape"), attrgetter("data")


class Shortcut(NamedTuple):
    """The way of requests with one layout.

    Attributes:
        route: to the version.
        called: the model's name, as clients send it.
        names: of the inputs.
        datatypes: of the inputs.
        shapes: of the inputs.
        request: has everything but the id and the inputs.
    """

    route: Route
    called: str
    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    shapes: tuple[Any, ...]
    request: InferenceRequest


KnownRequest = tuple[MessageLayout, Shortcut, InferenceRequest]
"""A request that was recognised: the layout of its message, its way, and itself, complete and checked."""


class FastPath:
    """The fast path of one port.

    Args:
        frontend: the state that all calls share.
        memory: of its messages.
    """

    def __init__(self, frontend: GrpcFrontend, memory: Memory) -> None:
        self._frontend = frontend
        self._layouts = memory.layouts
        self._forms: Recurring[tuple[Any, ...], tuple[AnswerForm, int]] = Recurring(MOST_FORMS)

    def call(self, connection: CallConnection, stream: Stream, head: CallHead) -> InferCall:
        """A call of ``ModelInfer``, whose message may turn out to be known."""
        return _FastCall(self, connection, stream, head)

    def take(
        self, connection: CallConnection, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int
    ) -> InferCall | None:
        """Answer a whole call with a known head; None if its message, between two offsets, must take the ordinary way."""
        known = self.known(data, start, stop)
        call_head: CallHead = head.user_data  # type: ignore[assignment]
        if known is not None:
            call = _FastCall(self, connection, stream, call_head)
            if call.submit_known(known):
                return call
            call.forget_deadline()
        call_head.takes_shortcut = False
        return None

    def known(self, data: bytes, start: int, stop: int) -> KnownRequest | None:
        """The request in the body of a call.

        Args:
            data: received bytes.
            start: where the body begins in them.
            stop: where it ends.

        Returns:
            None if the body is not exactly one message that is not compressed, if there is no shortcut for that, or
            if something must be noted about each request.
        """
        frontend = self._frontend
        if stop - start < PREFIX_BYTES or frontend.request_log.on or frontend.closing or frontend.engine.tracer.active:
            return None
        flag, size = PREFIX.unpack_from(data, start)
        start += PREFIX_BYTES
        if flag or size != stop - start:
            return None
        found = self._layouts.find(data, start, stop)
        if found is None:
            return None
        layout, request_id, raw = found
        shortcut: Shortcut | None = layout.user_data
        if shortcut is None:
            return None
        inputs = [*map(InputTensor, shortcut.names, shortcut.datatypes, shortcut.shapes, raw)]
        return layout, shortcut, request_like(shortcut.request, inputs, request_id)

    def answer(self, stream: Stream, response: InferenceResponse) -> bool:
        """Send a result as a whole call's answer; its memory may be released afterwards.

        Args:
            stream: of the call.
            response: a result without parameters, whose outputs are all wanted.

        Returns:
            False if nothing was sent: the answer is large, or must wait.
        """
        outputs = response.outputs
        data = [*map(_data, outputs)]
        key = (
            response.model_name,
            response.model_version,
            *map(_kind, outputs),
            *map(tuple, map(_shape, outputs)),
            *map(len, data),
        )
        known = self._forms.get(key)
        if known is None:
            known = self._make_form(key, response)
            if known is None:
                return False
        form, nbytes = known
        identifier = b""
        if response.id:
            identifier = id_field(response.id)
            nbytes += len(identifier)
        return stream.respond_in(form, nbytes + PREFIX_BYTES, (PREFIX.pack(0, nbytes), identifier, *data))

    def _make_form(self, key: tuple[Any, ...], response: InferenceResponse) -> tuple[AnswerForm, int] | None:
        """The form of such answers; None if they are large."""
        made = message_format(response)
        if made is None or len(made[0]) > LONGEST_FORM_BYTES:
            return None
        message, nbytes = made
        form = AnswerForm(HEAD, b"%b" + message, OK_TRAILERS)
        self._forms.remember(key, (form, nbytes))
        return form, nbytes


class _FastCall(InferCall):
    """A call of ``ModelInfer`` that looks whether its message is known."""

    _took_shortcut = False

    def __init__(self, fast: FastPath, connection: CallConnection, stream: Stream, head: CallHead) -> None:
        super().__init__(connection, stream, head)
        self._fast = fast

    def on_data(self, payload: bytes | memoryview, ended: bool) -> None:
        """A piece of the request."""
        if (
            ended
            and not self._received_bytes
            and not self.is_over
            and self.head.forwarded is None
            and self._record is None
            and type(payload) is bytes
        ):
            size = len(payload)
            known = self._fast.known(payload, 0, size)
            if known is not None and self.submit_known(known):
                self.head.takes_shortcut = True
                self.stream.give_back(size)
                return
        super().on_data(payload, ended)

    def submit_known(self, known: KnownRequest) -> bool:
        """Submit a request that was recognised in the whole body of the call.

        Returns:
            False if another version would answer now: the request must be checked again.
        """
        layout, shortcut, request = known
        self._format, self._took_shortcut, self.half_closed = ALL_BINARY, True, True
        try:
            self._pending = shortcut.route.submit(request, self._on_response)
        except InferenceError as error:
            self._refuse(error, shortcut.called)
            return True
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A gRPC call to %s failed", self.head.path)
            self.fail(INTERNAL)
            return True
        if self._pending is None:
            layout.user_data = None
            self._format, self._took_shortcut, self.half_closed = None, False, False
            return False
        return True

    def _submit(self, admission: Admission, plan: InferPlan, layout: MessageLayout | None = None) -> None:
        if layout is not None and layout.user_data is None:
            _shorten(layout, admission, plan)
        super()._submit(admission, plan)

    def _on_response(self, response: InferenceResponse) -> None:
        if (
            self._took_shortcut
            and not self.is_over
            and response.error is None
            and not response.parameters
            and self._fast.answer(self.stream, response)
        ):
            self._pending = None
            response.release()
            self.end_answered()
        else:
            super()._on_response(response)


def _shorten(layout: MessageLayout, admission: Admission, plan: InferPlan) -> None:
    """Make the shortcut for the next requests with a layout, if nothing about this one is special."""
    request = plan.request
    if (
        plan.checked is not Checked.ALL
        or plan.output_format is not ALL_BINARY
        or request.regions is not None
        or request.has_options
    ):
        return
    route = admission.route()
    if route is None:
        return
    layout.user_data = Shortcut(
        route,
        layout.model_name,
        tuple(each.name for each in request.inputs),
        tuple(each.datatype for each in request.inputs),
        tuple(each.shape for each in request.inputs),
        request_like(request, []),
    )
