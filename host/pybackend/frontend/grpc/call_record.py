"""The parts of a call that are noted beside its answer: the line of the access log, and the trace.

Used by ``call`` and its subclasses, and only for calls of which anything is noted.
"""

from __future__ import annotations

from pybackend.engine.admission import Admission
from pybackend.frontend.grpc.errors import HEAD, head_with
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.http2 import HeaderBlock
from pybackend.frontend.request_log import RequestRecord
from pybackend.frontend.traced import begin_trace
from pybackend.inference.request import InferenceRequest
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.observability.tracing.tracer import Tracer
from pybackend.protocol.grpc.status import GrpcStatus


def begin_call_trace(
    tracer: Tracer, head: CallHead, request: InferenceRequest, model: str, began_ns: int = 0
) -> RequestTrace | None:
    """Begin the trace of a chosen request; see :func:`pybackend.frontend.traced.begin_trace`."""
    return begin_trace(tracer, request, model, "GRPC", began_ns=began_ns, fields=head.context)


def note_request(record: RequestRecord, head: CallHead, admission: Admission, request: InferenceRequest) -> None:
    """A request of the call has been read."""
    record.asks(admission.model_name, admission.model_version, request.id)
    record.continues(head.metadata.get(b"traceparent"))


def is_chosen(tracer: Tracer, head: CallHead, model: str) -> bool:
    """Whether a request to a model, given by its full name, may be traced. The tracer is active."""
    return head.context is not None or tracer.takes(model)


def answer_head(record: RequestRecord | None) -> HeaderBlock:
    """The head of a successful answer."""
    traceparent = b"" if record is None else record.traceparent
    return head_with((b"traceparent", traceparent)) if traceparent else HEAD


def end_record(record: RequestRecord, status: GrpcStatus | str, received_bytes: int, sent_bytes: int) -> None:
    """The call has ended.

    Args:
        record: of the call.
        status: of the answer.
        received_bytes: size of the client's messages.
        sent_bytes: size of those messages of the answer that were not counted yet.
    """
    record.status = status_name(status)
    record.received_bytes = received_bytes
    record.sent_bytes += sent_bytes
    record.end()


def status_name(status: GrpcStatus | str) -> str:
    """The status as the log and the metrics call it."""
    return status.name if isinstance(status, GrpcStatus) else status
