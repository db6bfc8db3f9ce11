"""``ModelInfer``: one request, one response."""

import logging
import time

from pybackend.engine.admission import ClientAdmission, Sender
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.grpc.arriving_request import ArrivingRequest
from pybackend.frontend.grpc.call import GrpcCall, Handler, note_request
from pybackend.frontend.grpc.errors import INTERNAL, SHUTTING_DOWN, CallError
from pybackend.frontend.grpc.fast_path import GrpcFastPath, KnownRequest
from pybackend.frontend.grpc.frontend import PROTOCOL
from pybackend.inference.pending import RequestHandle
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.layouts import MessageLayout
from pybackend.protocol.grpc.response import encode_message
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, OutputFormat

log = logging.getLogger(__name__)


def _refuse_stream(_model_name: str) -> InferenceError:
    return InferenceError(
        "ModelInfer RPC doesn't support models with decoupled transaction policy: use ModelStreamInfer",
        ErrorCode.UNSUPPORTED,
    )


_SENDER = Sender(PROTOCOL, refuse_stream=_refuse_stream)


class InferHandler(Handler):
    """Answers a call of ``ModelInfer``, by the fast path if its message is known."""

    takes_large = True
    _pending: RequestHandle | None = None
    _format: OutputFormat | None = None
    _known_by: GrpcFastPath | None = None  # what has recognised the request, and knows its answer
    _began_ns = 0

    def __init__(self, call: GrpcCall, fast: GrpcFastPath | None) -> None:
        self._call = call
        self._fast = fast

    def on_message(self, message: bytes) -> None:
        self._check_first()
        call, fast = self._call, self._fast
        frontend = call.peer.frontend
        if frontend.refusing:
            call.fail(SHUTTING_DOWN)
            return
        if (
            fast is not None
            and not call.stream.receiving
            and call.messages is None
            and call.head.forwarded is None
            and call.record is None
        ):
            known = fast.known(message, 0, len(message))
            if known is not None and self.submit_known(known):
                call.head.takes_shortcut = True
                return
        name = ""
        try:
            parts, layout = frontend.split(message)
            name = parts.model_name
            self._submit(*frontend.plan(parts, _SENDER), layout)
        except InferenceError as error:
            self._refuse(error, name)

    def begin_large(self, nbytes: int) -> ArrivingRequest:
        """Receive the request's tensors directly."""
        self._check_first()
        peer = self._call.peer
        if peer.frontend.engine.tracer.active:
            self._began_ns = time.monotonic_ns()
        return ArrivingRequest(nbytes, peer, _SENDER, drops_rest=False)

    def on_arrived(self, arrived: ArrivingRequest) -> None:
        if self._call.peer.frontend.refusing:
            arrived.release()
            self._call.fail(SHUTTING_DOWN)
            return
        try:
            self._submit(*arrived.finish())
        except InferenceError as error:
            self._refuse(error, arrived.model_name)

    def _check_first(self) -> None:
        if self._format is not None:
            raise CallError(GrpcStatus.INTERNAL, "ModelInfer takes one message, and there is another")

    def submit_known(self, known: KnownRequest) -> bool:
        """Submit a request that was recognised. False if another version would answer now: it must be checked again."""
        layout, shortcut, request = known
        self._format, self._known_by = ALL_BINARY, self._fast
        try:
            self._pending = shortcut.route(request, self._on_response)
        except InferenceError as error:
            self._refuse(error, shortcut.called)
        except Exception as error:  # noqa: BLE001  the client gets an answer, whatever it sent
            self._call.failed(error)
        else:
            if self._pending is None:
                layout.user_data = None
                self._format = self._known_by = None
                return False
        return True

    def _submit(self, admission: ClientAdmission, plan: InferPlan, layout: MessageLayout | None = None) -> None:
        call, request = self._call, plan.request
        if layout is not None and layout.user_data is None and self._fast is not None:
            self._fast.shorten(layout, admission, plan)
        if call.head.forwarded is not None:
            add_parameters(request, call.head.forwarded)
        self._format = plan.output_format
        frontend = call.peer.frontend
        if call.record is not None or frontend.engine.tracer.active:
            trace = note_request(call, admission, request, self._began_ns)
            if trace is not None:
                call.record = frontend.request_log.begin_traced(call.record, trace)
        self._pending = admission.submit(request, self._on_response, plan.checked)

    def _refuse(self, error: InferenceError, model_name: str) -> None:
        call = self._call
        if call.record is not None and model_name and not call.record.about:
            call.record.asks(model_name)
        call.peer.frontend.refused(error, call.peer.address, model_name)
        call.fail(CallError.of(error))

    def on_half_close(self) -> None:
        if self._format is None:
            raise CallError(GrpcStatus.INTERNAL, "ModelInfer takes one message, and there is none")

    def is_working(self) -> bool:
        return self._pending is not None

    def needs_message(self) -> bool:
        """True before the request."""
        return self._format is None

    def on_cancelled(self) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def _on_response(self, response: InferenceResponse) -> None:
        self._pending = None
        call = self._call
        if call.is_over:
            response.release()
            return
        fast = self._known_by
        if (
            fast is not None
            and response.error is None
            and not response.parameters
            and fast.answer(call.stream, response)
        ):
            response.release()
            call.replied()
            return
        call.peer.flush_soon()
        if response.error is not None:
            call.fail(CallError.of(response.error))
            return
        assert self._format is not None
        try:
            encoded = encode_message(response, self._format, call.peer.frontend.headers)
        except InferenceError as error:
            response.release()
            call.fail(CallError.of(error))
        except Exception:  # the client gets an answer, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", response.model_name)
            response.release()
            call.fail(INTERNAL)
        else:
            if encoded.borrows_memory or call.compression is not None:
                call.open_answer().send_response(encoded, response)
                call.finish()
            else:
                call.reply(encoded.pieces, encoded.nbytes)
                response.release()
