"""``ModelInfer``: one request, one response."""

from __future__ import annotations

import logging
import time

from pybackend.engine.admission import Admission, Sender
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.grpc.arriving_request import ArrivingRequest
from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.call_record import begin_call_trace, is_chosen, note_request
from pybackend.frontend.grpc.errors import INTERNAL, SHUTTING_DOWN, CallError
from pybackend.frontend.grpc.frontend import PROTOCOL
from pybackend.frontend.grpc.shortcut import KnownRequest, known_request, shorten
from pybackend.frontend.grpc.small_answer import answer_small
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc_response import encode_message
from pybackend.protocol.grpc_status import GrpcStatus
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, OutputFormat

log = logging.getLogger(__name__)


def _refuse_stream(_model_name: str) -> InferenceError:
    return InferenceError(
        "ModelInfer RPC doesn't support models with decoupled transaction policy: use ModelStreamInfer",
        ErrorCode.UNSUPPORTED,
    )


_SENDER = Sender(PROTOCOL, refuse_stream=_refuse_stream)


class InferCall(Call):
    """A call of ``ModelInfer``."""

    receives_large = True
    takes_shortcut = True
    """Known requests are submitted at once, and small results of them are sent at once."""
    _took_shortcut = False
    _pending: PendingRequest | None = None
    _format: OutputFormat | None = None
    _began_ns = 0

    def on_data(self, payload: bytes | memoryview, ended: bool) -> None:
        """A piece of the request."""
        if (
            ended
            and self.takes_shortcut
            and not self._received_bytes
            and not self.is_over
            and self.head.forwarded is None
            and self._exchange is None
            and type(payload) is bytes
        ):
            size = len(payload)
            known = known_request(self.connection.frontend, payload, 0, size)
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
            layout.memo = None
            self._format, self._took_shortcut, self.half_closed = None, False, False
            return False
        return True

    def on_message(self, message: bytes) -> None:
        """Submit the request."""
        self._check_first()
        frontend = self.connection.frontend
        if frontend.closing:
            self.fail(SHUTTING_DOWN)
            return
        name = ""
        try:
            parts, layout = frontend.layouts.split(message, frontend.limits)
            name = parts.model_name
            admission, plan = frontend.plan(parts, _SENDER)
            if layout is not None and layout.memo is None:
                shorten(layout, admission, plan)
            self._submit(admission, plan)
        except InferenceError as error:
            self._refuse(error, name)

    def begin_large(self, nbytes: int) -> ArrivingRequest:
        """Receive the request's tensors directly."""
        self._check_first()
        if self.connection.frontend.engine.tracer.active:
            self._began_ns = time.monotonic_ns()
        return ArrivingRequest(nbytes, self.connection, _SENDER, drops_rest=False)

    def on_arrived(self, arrived: ArrivingRequest) -> None:
        """Submit the request."""
        if self.connection.frontend.closing:
            arrived.release()
            self.fail(SHUTTING_DOWN)
            return
        try:
            self._submit(*arrived.finish())
        except InferenceError as error:
            self._refuse(error, arrived.model_name)

    def _check_first(self) -> None:
        if self._format is not None:
            raise CallError(GrpcStatus.INTERNAL, "ModelInfer takes one message, and there is another")

    def _submit(self, admission: Admission, plan: InferPlan) -> None:
        if self.head.forwarded is not None:
            add_parameters(plan.request, self.head.forwarded)
        self._format = plan.output_format
        if self._exchange is not None:
            note_request(self._exchange, self.head, admission, plan.request)
        tracer = self.connection.frontend.engine.tracer
        if tracer.active and is_chosen(tracer, self.head, admission.full_name):
            trace = begin_call_trace(tracer, self.head, plan.request, admission.full_name, self._began_ns)
            if trace is not None:
                self._exchange = self.connection.frontend.watch.begin_traced(self._exchange, trace)
        self._pending = admission.submit(plan.request, self._on_response, plan.checked)

    def _refuse(self, error: InferenceError, model_name: str) -> None:
        if self._exchange is not None and model_name and not self._exchange.about:
            self._exchange.asks(model_name)
        self.connection.frontend.refused(error, self.connection.address, model_name)
        self.fail(CallError.of(error))

    def on_half_close(self) -> None:
        """The client has sent all of it."""
        if self._format is None:
            raise CallError(GrpcStatus.INTERNAL, "ModelInfer takes one message, and there is none")

    def accepts_messages(self) -> bool:
        """False while a large request is read: what follows it is an error."""
        return not self.is_reading

    def is_working(self) -> bool:
        """The model has the request, or it is being read."""
        return self._pending is not None or self.is_reading

    def needs_message(self) -> bool:
        """True before the request."""
        return self._format is None and not self.is_reading

    def on_cancelled(self) -> None:
        """Cancel the request."""
        if self._pending is not None:
            self._pending.cancel()

    def _on_response(self, response: InferenceResponse) -> None:
        self._pending = None
        if self.is_over:
            response.release()
            return
        if (
            self._took_shortcut
            and response.error is None
            and not response.parameters
            and answer_small(self.stream, response)
        ):
            response.release()
            self.end_answered()
            return
        self.connection.flush_soon()
        if response.error is not None:
            self.fail(CallError.of(response.error))
            return
        assert self._format is not None
        try:
            encoded = encode_message(response, self._format)
        except InferenceError as error:
            response.release()
            self.fail(CallError.of(error))
        except Exception:  # the client gets an answer, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", response.model_name)
            response.release()
            self.fail(INTERNAL)
        else:
            self.answer(encoded, response)
