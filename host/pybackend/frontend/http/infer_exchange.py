"""One infer request: read by callbacks, without a task, future or scope, and handed to the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from msgspec import Struct

from pybackend.engine.admission import Admission
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders, add_parameters
from pybackend.frontend.compression import Coding
from pybackend.frontend.http.compressed_body import Body, CompressedBody
from pybackend.frontend.http.connection import INTERNAL_ERROR, MAX_KEPT_BYTES, HttpConnection
from pybackend.frontend.http.content_coding import answer_coding, request_coding
from pybackend.frontend.http.exchange import Exchange
from pybackend.frontend.http.infer_answer import InferAnswer
from pybackend.frontend.http.infer_body import HTTP_CLIENT, SMALL_BODY_BYTES, StreamedBody, decode_body
from pybackend.frontend.http.model_path import INFER_TARGET, plain_version
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.slow_senders import SlowSenders
from pybackend.frontend.traced import ContextFields, begin_trace
from pybackend.inference.request import InferenceRequest
from pybackend.protocol.infer_plan import ALL_JSON, InferPlan
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCaches

log = logging.getLogger(__name__)

_DONE = object()


class InferService:
    """The state that infer requests of a port share.

    Attributes:
        engine: handles the requests.
        limits: bounds of request bodies.
        answers: counts the answers by status.
        senders: connections of all ports whose requests arrive in models' memory.
        forwards: the headers that become request parameters; None for none.
        plans: of earlier requests; None if nothing is remembered.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        limits: BodyLimits,
        *,
        senders: SlowSenders | None = None,
        forwards: ForwardedHeaders | None = None,
        remembers: bool = True,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.answers = engine.answers[HTTP_CLIENT.protocol]
        self.senders = SlowSenders() if senders is None else senders
        self.forwards = forwards
        self.plans = PlanCaches() if remembers else None


class InferHead(Struct, eq=False):
    """The meaning of an infer request's head.

    Attributes:
        header_length: says how long the JSON part is; None if the client does not say.
        takes_chunks: the client speaks HTTP/1.1.
        coding: the compression that the client wants for the answer; None for none.
        forwarded: the parameters that headers have become; None for none.
        context: the fields of the trace context; None if there are none.
        encodings: how the body is compressed; empty if it is not.
    """

    model_name: str
    model_version: str
    header_length: bytes | None
    takes_chunks: bool
    coding: Coding | None
    forwarded: Mapping[str, str] | None
    context: ContextFields | None
    encodings: bytes


def read_head(head: RequestHead) -> InferHead | None:
    """The meaning of a head, without forwarded headers; None if it is not an infer request."""
    found = INFER_TARGET.fullmatch(head.target)
    if found is None or head.method != b"POST":
        return None
    header_length, encodings, accepted = None, [], []
    parent = state = b""
    for field, value in head.headers:
        size = len(field)  # tells most fields apart, at less cost than their names
        if size == 31 and field.lower() == b"inference-header-content-length":
            header_length = value
        elif size == 16 and field.lower() == b"content-encoding":
            encodings.append(value)
        elif size == 15 and field.lower() == b"accept-encoding":
            accepted.append(value)
        elif size == 11 and field.lower() == b"traceparent":
            parent = value
        elif size == 10 and field.lower() == b"tracestate":
            state = value
    takes_chunks = head.version == "1.1"
    return InferHead(
        unquote(found[1].decode("latin-1"), "utf-8", "replace"),
        plain_version(found[2].decode()) if found[2] else "",
        header_length,
        takes_chunks,
        answer_coding(b",".join(accepted)) if accepted and takes_chunks else None,
        None,
        (parent, state) if parent else None,
        b",".join(encodings),
    )


class InferExchange(Exchange):
    """A request until the engine has it; then its answer takes the place of this object.

    Attributes:
        admission: to the model; None if the request is refused.
        head: the meaning of its head.
    """

    __slots__ = (
        "_arrived",
        "_began_ns",
        "_body",
        "_connection",
        "_parts",
        "_refusal",
        "_service",
        "admission",
        "head",
    )

    def __init__(self, connection: HttpConnection, service: InferService, head: InferHead) -> None:
        self._connection = connection
        self._service = service
        self.head = head
        self._began_ns = time.monotonic_ns() if service.engine.tracer.active else 0
        self._parts: list[bytes] = []
        self._body: Body | None = None
        self._arrived = False
        self._refusal: InferenceError | None = None
        self.admission: Admission | None = None
        try:
            self.admission = service.engine.open(head.model_name, head.model_version, HTTP_CLIENT)
        except InferenceError as error:
            self._refuse(error)

    @property
    def is_small(self) -> bool:
        """The body is collected and decoded at once."""
        return self._body is None and self._refusal is None

    def expect(self, head: RequestHead) -> None:
        """Prepare for the body that a head announces."""
        service = self._service
        if self.admission is None:
            return
        try:
            if service.forwards is not None:
                self.head.forwarded = service.forwards.of(head.headers)
            coding = request_coding(self.head.encodings) if self.head.encodings else None
            if head.chunked or head.content_length > SMALL_BODY_BYTES or coding is not None:
                service.senders.add(self._connection)
                length = None if head.chunked or coding is not None else head.content_length
                body = StreamedBody(
                    self.admission, self.head.header_length, length, service.limits, self._drop_slowest_sender
                )
                self._body = body if coding is None else CompressedBody(body, coding, service.limits)
        except InferenceError as error:
            self._refuse(error)

    # The body

    def on_body(self, piece: bytes) -> None:
        body = self._body
        if self._refusal is not None:  # a client that is still sending does not read an answer
            return
        if body is None:
            self._parts.append(piece)
            return
        try:
            was_busy = body.work is not None
            body.feed(piece)
            self._hold(body)
            if body.work is not None and not was_busy:
                self._work(body, self._go_on)
        except InferenceError as error:
            self._refuse(error)

    def room(self) -> memoryview | None:
        body = self._body
        if not isinstance(body, StreamedBody) or body.work is not None:
            return None
        try:
            return body.room()
        except InferenceError as error:
            self._refuse(error)
            return None

    def on_stored(self, count: int) -> None:
        assert isinstance(self._body, StreamedBody)
        try:
            self._body.advance(count)
        except InferenceError as error:
            self._refuse(error)

    def _hold(self, body: Body) -> None:
        """Account for bytes of a body that lie outside its model's memory."""
        if body.private_bytes > MAX_KEPT_BYTES or self._connection.held_bytes:
            self._connection.hold(body.private_bytes)

    def _work(self, body: Body, go_on: Callable[[], None]) -> None:
        """Do a body's work in slices; the client may continue to send, up to a limit."""

        def step() -> bool:
            work = body.work
            if self._body is not body or work is None:
                return False
            try:
                if next(work, _DONE) is _DONE:
                    body.work = None
                self._hold(body)
            except InferenceError as error:
                self._refuse(error)
            except Exception:  # the client gets an answer, whatever it sent
                log.exception("A request could not be read")
                self._refuse(InferenceError(INTERNAL_ERROR))
            if body.work is not None and self._body is body:
                return True
            go_on()
            return False

        self._connection.pause_reading()
        self._connection.port.slices.add(step)

    def _go_on(self) -> None:
        """Receive the rest, after the JSON part was parsed, or the body was refused."""
        self._connection.resume_reading()
        if self._arrived:
            self.on_complete()

    def _refuse(self, error: InferenceError) -> None:
        """Drop what has arrived and will arrive; the error is sent once it has.

        The error's traceback would keep this object and all that has arrived until the garbage collector runs.
        """
        self._refusal = error.again()
        self._release()

    def _release(self) -> None:
        body, self._body = self._body, None  # it has a reference to this object
        if body is not None:
            body.release()
            self._service.senders.discard(self._connection)

    def on_lost(self) -> None:
        self._release()

    def _drop_slowest_sender(self) -> bool:
        """Disconnect the slowest of the slow clients whose bodies hold memory that others need; False if none does."""
        return self._service.senders.drop_slowest(self._connection, self.admission)

    def holds_memory_for(self, other: Admission) -> bool:
        own = self.admission
        return own is not None and self._body is not None and own.has_room and own.shares_memory_with(other)

    # The complete request

    def on_complete(self) -> None:
        self._arrived = True
        body = self._body
        if body is not None:
            if body.work is not None:
                return  # the JSON part is still being parsed
            try:
                body.complete()
            except InferenceError as error:
                self._refuse(error)
            if body.work is not None and self._refusal is None:
                self._work(body, self._submit)
                return
        self._submit()

    def _submit(self) -> None:
        connection, service, head = self._connection, self._service, self.head
        connection.resume_reading()
        if self._refusal is not None:
            self._answer_refusal(self._refusal)
            return
        admission = self.admission
        assert admission is not None
        try:
            plan = self._plan(admission)
            if head.forwarded is not None:
                add_parameters(plan.request, head.forwarded)
            tracer = service.engine.tracer
            if tracer.active and (head.context is not None or tracer.takes(admission.full_name)):
                self._begin_trace(plan.request, admission.full_name)
            answer = InferAnswer(connection, service.answers, plan.output_format, head.coding, head.takes_chunks)
            answer.pending = admission.submit(plan.request, answer.on_response, plan.checked)
            if self._body is not None:
                self._body = None  # the model has its memory
                service.senders.discard(connection)
            connection.hold(0)
            connection.answer_by(answer)
        except InferenceError as error:
            self._answer_refusal(error)

    def _answer_refusal(self, error: InferenceError) -> None:
        """Count and answer a request that no model has accepted."""
        self._release()
        connection, service, head = self._connection, self._service, self.head
        name = head.model_name if self.admission is None else self.admission.model_name
        service.engine.refusals.add_error(HTTP_CLIENT.protocol, name, error, connection.address)
        InferAnswer(connection, service.answers, ALL_JSON, head.coding, head.takes_chunks).fail(error)

    def _plan(self, admission: Admission) -> InferPlan:
        """The request, read to its end.

        Raises:
            InferenceError: it is invalid.
        """
        if self._body is not None:
            return self._body.finish()
        admission.renew()
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        plans = None if self._service.plans is None else self._service.plans.of(admission.signature)
        return decode_body(whole, self.head.header_length, admission, self._service.limits, plans)

    def _begin_trace(self, request: InferenceRequest, model: str) -> None:
        tracer, connection = self._service.engine.tracer, self._connection
        trace = begin_trace(tracer, request, model, "HTTP", began_ns=self._began_ns, fields=self.head.context)
        if trace is not None:
            connection.record = connection.port.watch.begin_traced(connection.record, trace)
