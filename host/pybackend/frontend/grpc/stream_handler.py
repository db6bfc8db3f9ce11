"""``ModelStreamInfer``: any number of requests, and any number of responses to each."""

import logging
from collections import deque
from functools import partial

from msgspec import Struct

from pybackend.engine.admission import ClientAdmission, Sender
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.grpc.arriving_request import ArrivingRequest
from pybackend.frontend.grpc.call import GrpcCall, Handler, note_request
from pybackend.frontend.grpc.errors import SHUTTING_DOWN, CallError
from pybackend.frontend.grpc.frontend import PROTOCOL
from pybackend.frontend.grpc.head import STATUS_ON_ERROR
from pybackend.inference.pending import RequestHandle
from pybackend.inference.response import InferenceResponse
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.protocol.grpc.response import encode_stream_error, encode_stream_message
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, OutputFormat

log = logging.getLogger(__name__)

MOST_OPEN_REQUESTS = 1024
"""Of one stream; further messages wait, and in the end the client."""

_CANCELLED_AT_ONCE = 16

MOST_UNREAD_BYTES = 256 * 1024
"""Of responses that the client has not taken; then its models wait."""

_SENDER = Sender(PROTOCOL)


class _Request(Struct, eq=False):
    """A request of the stream that has not received its last response."""

    ordered: bool  # its response waits for those of earlier requests
    format: OutputFormat = ALL_BINARY
    wants_empty_final: bool = False
    # the handle to cancel, pause and resume it; None before it is accepted, and if it was refused
    pending: RequestHandle | None = None
    # the response that waits; a finished message if the request was refused
    response: InferenceResponse | bytes | None = None
    trace: RequestTrace | None = None  # its trace; None if it is not traced


class StreamInferHandler(Handler):
    """Answers a call of ``ModelStreamInfer``.

    Responses of models that are not decoupled come in the order of the requests, those of decoupled models as they are
    produced. An error is a message, and the stream goes on; with the metadata ``triton_grpc_error: true`` it ends the
    call.
    """

    takes_large = True

    def __init__(self, call: GrpcCall) -> None:
        self._call = call
        self._answer = call.open_answer()
        self._open: set[_Request] = set()
        self._in_order: deque[_Request] = deque()
        self._dropped: list[_Request] = []
        self._status_on_error = call.head.metadata.get(STATUS_ON_ERROR) == b"true"

    # Requests

    def accepts_messages(self) -> bool:
        """False while too many requests are open, or too many responses unread."""
        return len(self._open) < MOST_OPEN_REQUESTS and self._answer.unread_bytes <= MOST_UNREAD_BYTES

    def on_message(self, message: bytes) -> None:
        frontend = self._call.peer.frontend
        name = request_id = ""
        try:
            parts, _ = frontend.split(message)
            name, request_id = parts.model_name, parts.id
            self._submit(*frontend.plan(parts, _SENDER))
        except InferenceError as error:
            self._refuse(error, name, request_id)

    def begin_large(self, nbytes: int) -> ArrivingRequest:
        """Receive a request's tensors directly."""
        return ArrivingRequest(nbytes, self._call.peer, _SENDER, drops_rest=True)

    def on_arrived(self, arrived: ArrivingRequest) -> None:
        try:
            self._submit(*arrived.finish())
        except InferenceError as error:
            self._refuse(error, arrived.model_name, arrived.request_id)

    def _submit(self, admission: ClientAdmission, plan: InferPlan) -> None:
        if self._call.peer.frontend.refusing:
            admission.release()
            raise InferenceError(SHUTTING_DOWN.message, ErrorCode.UNAVAILABLE)
        call = self._call
        if call.head.forwarded is not None:
            add_parameters(plan.request, call.head.forwarded)
        request = _Request(not admission.is_decoupled, plan.output_format, plan.wants_empty_final)
        if call.record is not None or call.peer.frontend.engine.tracer.active:
            request.trace = note_request(call, admission, plan.request)
        request.pending = admission.submit(plan.request, partial(self._on_response, request), plan.checked)
        self._add(request)

    def _refuse(self, error: InferenceError, model_name: str, request_id: str) -> None:
        self._call.peer.frontend.refused(error, self._call.peer.address, model_name)
        self._add(_Request(ordered=True, response=encode_stream_error(error, request_id)))

    def _add(self, request: _Request) -> None:
        self._open.add(request)
        if request.ordered:
            self._in_order.append(request)
            self._send_in_order()

    def on_half_close(self) -> None:
        """End the call if the client sends no further requests, and all are answered."""
        call = self._call
        if not (call.stream.receiving or self._open or call.is_over or call.is_reading):
            call.finish()

    def is_working(self) -> bool:
        return bool(self._open)

    def on_cancelled(self) -> None:
        in_order, self._in_order = self._in_order, deque()
        requests, self._open = self._open, set()
        for request in in_order:
            if isinstance(request.response, InferenceResponse):
                request.response.release()
        self._dropped = list(requests)
        if self._drop_some():
            self._call.peer.slices.add(self._drop_some)

    def _drop_some(self) -> bool:
        """Cancel some requests of many; True if there are more. Streams with thousands of them may end together."""
        dropped = self._dropped
        for _ in range(min(len(dropped), _CANCELLED_AT_ONCE)):
            request = dropped.pop()
            if request.trace is not None:
                request.trace.sent()
            if request.pending is not None:
                request.pending.cancel()
                request.pending = None
        return bool(dropped)

    # Responses

    def _on_response(self, request: _Request, response: InferenceResponse) -> None:
        if self._call.is_over:
            response.release()
            return
        self._call.peer.flush_soon()
        if not request.ordered:
            self._send_response(request, response)
            if response.final and not self._call.is_over:
                self._close(request)
        elif response.final:
            request.response = response
            self._send_in_order()
        else:  # models that are not decoupled have one response
            response.release()

    def _send_in_order(self) -> None:
        while self._in_order and self._in_order[0].response is not None:
            request = self._in_order.popleft()
            response, request.response = request.response, None
            if isinstance(response, InferenceResponse):
                self._send_response(request, response)
            elif response is not None:
                self._answer.send(response)
            if self._call.is_over:
                return
            self._close(request)

    def _send_response(self, request: _Request, response: InferenceResponse) -> None:
        if response.error is not None:
            self._send_error(response.error, response)
            return
        if response.empty and not request.wants_empty_final:
            response.release()
            return
        try:
            encoded = encode_stream_message(response, request.format, self._call.peer.frontend.headers)
        except InferenceError as error:
            self._send_error(error, response)
            return
        except Exception:  # the client gets an answer, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", response.model_name)
            self._send_error(InferenceError("internal error: see the server's log"), response)
            return
        self._answer.send_response(encoded, response)
        if self._answer.unread_bytes > MOST_UNREAD_BYTES:
            for each in self._open:
                if each.pending is not None:
                    each.pending.pause()

    def _send_error(self, error: InferenceError, response: InferenceResponse) -> None:
        message = encode_stream_error(error, response.id, response)
        response.release()
        if self._status_on_error:
            self._call.fail(CallError.of(error))
        else:
            self._answer.send(message)

    def on_writable(self) -> None:
        """The client has taken everything: models and messages go on."""
        for request in self._open:
            if request.pending is not None:
                request.pending.resume()
        self._call.go_on()

    def _close(self, request: _Request) -> None:
        was_full = len(self._open) >= MOST_OPEN_REQUESTS
        self._open.discard(request)
        request.pending = None  # it has a reference to the request
        if request.trace is not None:
            request.trace.sent()
        if was_full:
            self._call.peer.loop.call_soon(self._go_on_soon)
        self.on_half_close()
        if self._call.peer.frontend.refusing:
            self._call.shut_down()

    def _go_on_soon(self) -> None:
        self._call.go_on()
        self._call.peer.flush_soon()
