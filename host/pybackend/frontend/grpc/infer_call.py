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
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.layouts import MessageLayout
from pybackend.protocol.grpc.response import encode_message
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend.protocol.infer_plan import InferPlan, OutputFormat

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
    _pending: PendingRequest | None = None
    _format: OutputFormat | None = None
    _began_ns = 0

    def on_message(self, message: bytes) -> None:
        """Submit the request."""
        self._check_first()
        frontend = self.connection.frontend
        if frontend.closing:
            self.fail(SHUTTING_DOWN)
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

    def _submit(self, admission: Admission, plan: InferPlan, _layout: MessageLayout | None = None) -> None:
        if self.head.forwarded is not None:
            add_parameters(plan.request, self.head.forwarded)
        self._format = plan.output_format
        if self._record is not None:
            note_request(self._record, self.head, admission, plan.request)
        tracer = self.connection.frontend.engine.tracer
        if tracer.active and is_chosen(tracer, self.head, admission.full_name):
            trace = begin_call_trace(tracer, self.head, plan.request, admission.full_name, self._began_ns)
            if trace is not None:
                self._record = self.connection.frontend.request_log.begin_traced(self._record, trace)
        self._pending = admission.submit(plan.request, self._on_response, plan.checked)

    def _refuse(self, error: InferenceError, model_name: str) -> None:
        if self._record is not None and model_name and not self._record.about:
            self._record.asks(model_name)
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
        self.connection.flush_soon()
        if response.error is not None:
            self.fail(CallError.of(response.error))
            return
        assert self._format is not None
        try:
            encoded = encode_message(response, self._format, self.connection.frontend.headers)
        except InferenceError as error:
            response.release()
            self.fail(CallError.of(error))
        except Exception:  # the client gets an answer, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", response.model_name)
            response.release()
            self.fail(INTERNAL)
        else:
            self.answer(encoded, response)
