"""One infer request: read by callbacks, without a task, future or scope, and handed to the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from pybackend.engine.admission import ClientAdmission
from pybackend.engine.door import Door
from pybackend.errors import InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.compression import Coding
from pybackend.frontend.http.answer_writer import INTERNAL
from pybackend.frontend.http.body import Body
from pybackend.frontend.http.connection import Exchange, HttpConnection
from pybackend.frontend.http.content_coding import answer_coding
from pybackend.frontend.http.infer_answer import InferAnswer
from pybackend.frontend.http.infer_body import HTTP_CLIENT, SMALL_BODY_BYTES, decode_body
from pybackend.frontend.http.infer_frontend import HeadFields, InferFrontend, read_fields
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.http.routes import infer_target
from pybackend.frontend.request_log import begin_trace
from pybackend.protocol.infer_plan import ALL_JSON, InferPlan

log = logging.getLogger(__name__)

MOST_DROPPED_BYTES = 32 * 1024 * 1024
"""A refused request with more than this still to come is answered at once, and its connection ends."""


class InferHead(Struct, eq=False):
    """The meaning of an infer request's head."""

    model_name: str
    model_version: str
    fields: HeadFields
    takes_chunks: bool  # the client speaks HTTP/1.1
    coding: Coding | None  # the compression that the client wants for the answer; None for none
    forwarded: Mapping[str, str] | None = None  # the parameters that headers have become; None for none


def read_head(head: RequestHead) -> InferHead | None:
    """The meaning of a head, without forwarded headers; None if it is not an infer request."""
    target = infer_target(head.target)
    if target is None or head.method != b"POST":
        return None
    fields = read_fields(head.headers)
    takes_chunks = head.version == "1.1"
    coding = answer_coding(fields.accepted) if fields.accepted and takes_chunks else None
    return InferHead(*target, fields, takes_chunks, coding)


class InferExchange(Exchange):
    """A request until the engine has it; then its answer takes the place of this object."""

    __slots__ = (
        "_arrived",
        "_began_ns",
        "_body",
        "_connection",
        "_dropped_bytes",
        "_frontend",
        "_parts",
        "_refusal",
        "admission",
        "head",
    )

    def __init__(self, connection: HttpConnection, frontend: InferFrontend[Door], head: InferHead) -> None:
        self._connection = connection
        self._frontend = frontend
        self.head = head  # the meaning of its head
        self._began_ns = time.monotonic_ns() if frontend.engine.tracer.active else 0
        self._parts: list[bytes] = []
        self._body: Body[InferPlan] | None = None
        self._arrived = False
        self._dropped_bytes = 0
        self._refusal: InferenceError | None = None
        self.admission: ClientAdmission | None = None  # to the model; None if the request is refused
        try:
            self.admission = frontend.engine.open(head.model_name, head.model_version, HTTP_CLIENT)
        except InferenceError as error:
            self._refuse(error)

    @property
    def is_refused(self) -> bool:
        """The answer is an error, whatever the rest of the body is."""
        return self._refusal is not None

    @property
    def is_small(self) -> bool:
        """The body is collected and decoded at once."""
        return self._body is None and self._refusal is None

    def expect(self, head: RequestHead) -> None:
        """Prepare for the body that a head announces."""
        frontend = self._frontend
        if self.admission is None:
            return
        try:
            self.head.forwarded = frontend.forwarded(head.headers)
            fields = self.head.fields
            fields.check()
            if (
                head.chunked
                or head.content_length > SMALL_BODY_BYTES
                or fields.encodings.lower() not in {b"", b"identity"}
            ):
                self._connection.flow.begin_sending()
                nbytes = None if head.chunked else head.content_length
                self._body = frontend.body(self.admission, fields, nbytes, self._connection.flow)
        except InferenceError as error:
            self._refuse(error)

    # The body

    def on_body(self, piece: bytes) -> None:
        body = self._body
        if self._refusal is not None:  # a client that is still sending does not read an answer
            self._dropped_bytes += len(piece)
            return
        if body is None:
            self._parts.append(piece)
            return
        try:
            was_busy = body.work is not None
            body.feed(piece)
            self._connection.flow.hold(body.private_bytes)
            if body.work is not None and not was_busy:
                self._work(body, self._go_on)
        except InferenceError as error:
            self._refuse(error)

    def gives_up(self, left_bytes: int) -> bool:
        return self._refusal is not None and max(left_bytes, self._dropped_bytes) > MOST_DROPPED_BYTES

    def room(self) -> memoryview | None:
        try:
            return None if self._body is None else self._body.room()
        except InferenceError as error:
            self._refuse(error)
            return None

    def on_stored(self, count: int) -> None:
        assert self._body is not None
        try:
            self._body.stored(count)
            self._connection.flow.hold(self._body.private_bytes)
        except InferenceError as error:
            self._refuse(error)

    def _work(self, body: Body[InferPlan], go_on: Callable[[], None]) -> None:
        """Do a body's work in slices; the client may continue to send, up to a limit."""

        def step() -> bool:
            if self._body is not body:
                return False
            try:
                body.step()
                self._connection.flow.hold(body.private_bytes)
            except InferenceError as error:
                self._refuse(error)
            except Exception:  # the client gets an answer, whatever it sent
                log.exception("A request could not be read")
                self._refuse(InferenceError(INTERNAL))
            if body.work is not None and self._body is body:
                return True
            go_on()
            return False

        self._connection.input.pause()
        self._connection.port.slices.add(step)

    def _go_on(self) -> None:
        """Receive the rest, after the JSON part was parsed, or the body was refused."""
        self._connection.input.resume()
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
            self._connection.flow.end_sending()

    def on_lost(self) -> None:
        self._release()

    @property
    def arriving(self) -> Sequence[ClientAdmission]:  # type: ignore[override]
        return () if self.admission is None or self._body is None else (self.admission,)

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
        connection, frontend, head = self._connection, self._frontend, self.head
        connection.input.resume()
        if self._refusal is not None:
            self._answer_refusal(self._refusal)
            return
        admission = self.admission
        assert admission is not None
        try:
            plan = self._plan(admission)
            if head.forwarded is not None:
                add_parameters(plan.request, head.forwarded)
            context = head.fields.context
            if connection.record is not None:
                connection.record.asks(admission.model_name, admission.model_version, plan.request.id)
                connection.record.continues(None if context is None else context[0])
            if frontend.engine.tracer.active:
                trace = begin_trace(
                    frontend.engine.tracer, plan.request, admission.full_name, "HTTP", context, self._began_ns
                )
                if trace is not None:
                    connection.record = connection.port.request_log.begin_traced(connection.record, trace)
            answer = InferAnswer(connection, frontend.answers, plan.output_format, head.coding, head.takes_chunks)
            answer.pending = admission.submit(plan.request, answer.on_response, plan.checked)
            if self._body is not None:
                self._body = None  # the model has its memory
                connection.flow.end_sending()
            connection.flow.hold(0)
            connection.exchange = answer
        except InferenceError as error:
            self._answer_refusal(error)

    def _answer_refusal(self, error: InferenceError) -> None:
        """Count and answer a request that no model has accepted."""
        self._release()
        connection, frontend, head = self._connection, self._frontend, self.head
        name = head.model_name if self.admission is None else self.admission.full_name
        frontend.refused(name, error, connection.address)
        if connection.record is not None and not connection.record.about:
            connection.record.asks(name)
            connection.record.continues(None if head.fields.context is None else head.fields.context[0])
        InferAnswer(connection, frontend.answers, ALL_JSON, head.coding, head.takes_chunks).fail(error)

    def _plan(self, admission: ClientAdmission) -> InferPlan:
        """The request, read to its end."""
        if self._body is not None:
            return self._body.finish()
        admission.renew()
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        plans = None if self._frontend.plans is None else self._frontend.plans.of(admission.signature)
        return decode_body(whole, self.head.fields.header_length, admission, self._frontend.limits, plans)
