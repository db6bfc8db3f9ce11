"""The HTTP protocol class that answers infer requests with callbacks, without a task, future or scope per request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from uvicorn.config import Config
from uvicorn.server import ServerState

from pybackend.engine.admission import Admission
from pybackend.engine.refusals import RefusalReason
from pybackend.errors import InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.compression import DEFLATED_SLICE_BYTES, Coding
from pybackend.frontend.http.answer_head import (
    BINARY_CHUNKS_HEAD,
    BINARY_HEAD,
    CHUNKS_HEAD,
    JSON_HEAD,
    with_rare_fields,
)
from pybackend.frontend.http.body_receiver import BodyReceiver
from pybackend.frontend.http.compressed_body import Body
from pybackend.frontend.http.content_coding import (
    ACCEPTED,
    UnsupportedCodingError,
    answer_coding,
    compressed,
)
from pybackend.frontend.http.errors import INTERNAL, STATUS
from pybackend.frontend.http.head_fields import read_fields
from pybackend.frontend.http.infer_body import HTTP_CLIENT, SMALL_BODY_BYTES, StreamedBody, decode_body
from pybackend.frontend.http.infer_frontend import LARGEST_KNOWN_HEAD_BYTES, InferFrontend, KnownHead, split_length
from pybackend.frontend.http.model_path import infer_target
from pybackend.frontend.http.piecewise_answer import answer_compressed, answer_in_pieces
from pybackend.frontend.http.serial_protocol import MAX_KEPT_BYTES
from pybackend.frontend.http.shortcut import ShortcutProtocol
from pybackend.frontend.listener import is_secure
from pybackend.frontend.slices import Slices
from pybackend.frontend.traced import ContextFields
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.protocol.infer_response import EncodedResponse, encode_response
from pybackend.protocol.json_pieces import is_large

log = logging.getLogger(__name__)


_ACCEPTED = b"accept-encoding: %b\r\n" % ACCEPTED.encode()

_DONE = object()


class InferProtocol(ShortcutProtocol):
    """One connection."""

    def __init__(
        self, config: Config, server_state: ServerState, frontend: InferFrontend, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._last_key = b""
        self._began_ns = 0
        self._context: ContextFields | None = None
        super().__init__(config, server_state, frontend, loop)

    def _start_message(self) -> None:
        if self._end_shortcut():
            return
        super()._start_message()
        self._admission: Admission | None = None
        self._header_length: bytes | None = None
        self._parts: list[bytes] = []
        self._body: Body | None = None
        self._refusal: InferenceError | None = None
        self._refused_model = ""
        self._format = self._pending = None
        self._takes_chunks = True
        self.coding: Coding | None = None
        self._forwarded: Mapping[str, str] | None = None

    # The request

    def recognise(self, head: bytes) -> bool:
        """True for a cached head."""
        found, self._found = self._found or self._frontend.known(head), None
        if found is None:
            return False
        known, self._body_left = found
        self._header_length = known.header_length
        self._takes_chunks, self.coding = known.takes_chunks, known.coding
        self._is_1_0 = not known.takes_chunks
        self._forwarded, self._answer_fields, self._context = known.forwarded, known.answer_fields, known.context
        self._began_ns = time.monotonic_ns() if self._frontend.engine.tracer.active else 0
        try:
            self._admission = self._frontend.engine.open(known.model_name, known.model_version, HTTP_CLIENT)
            if known.shortcut is None:
                self._frontend.shorten(known, self._admission)
        except InferenceError as error:
            self._refusal, self._refused_model = error.again(), known.model_name
        return True

    def claim(self) -> bool:
        """True for infer requests."""
        target = infer_target(self.url)
        if target is None or self.parser.get_method() != b"POST":
            return False
        name, version = target
        self._takes_chunks = self.parser.get_http_version() == "1.1"
        self._began_ns = time.monotonic_ns() if self._frontend.engine.tracer.active else 0
        fields = read_fields(self.headers)
        self._header_length, self._context = fields.header_length, fields.context
        if fields.accepted and self._takes_chunks:
            self.coding = answer_coding(fields.accepted)
        # Large bodies bypass the parser, which would copy them once more.
        self._bypasses_parser = self._body_left > SMALL_BODY_BYTES
        try:
            self._admission = self._frontend.engine.open(name, version, HTTP_CLIENT)
            if self._frontend.forwards is not None:
                self._forwarded = self._frontend.forwards.of(self.headers)
            fields.check()
            if self._chunked or self._bypasses_parser or fields.encodings.lower() not in {b"", b"identity"}:
                self._frontend.senders.add(self)
                nbytes = None if self._chunked else self._body_left
                self._body = self._frontend.body(self._admission, fields, nbytes, self._drop_slowest_sender)
            elif self._body_left and self._keep_alive and not self.expect_100_continue and self._head:
                head = KnownHead(
                    name,
                    version,
                    self._header_length,
                    self._body_left,
                    self._takes_chunks,
                    self.coding,
                    self._forwarded,
                    self._answer_fields,
                    self._context,
                )
                self._remember(head)
        except InferenceError as error:
            # The body is read and dropped: a client that is still sending does not read a response.
            self._refusal, self._refused_model = error.again(), name
        return True

    def _remember(self, meaning: KnownHead) -> None:
        """Cache a head when it occurs for the second time in a row.

        Heads that differ each time, e.g. by a trace id, would evict those of other clients.
        """
        head = self._head if meaning.has_length else split_length(self._head)[0]
        if len(head) > LARGEST_KNOWN_HEAD_BYTES or self._frontend.shows_credentials(meaning.forwarded):
            return
        key = self._frontend.key_of(head)
        if key == self._last_key:
            self._frontend.remember(key, meaning)
        else:
            self._last_key = key

    def claimed_body(self, piece: bytes) -> None:
        """Process the next bytes of the body."""
        if self._refusal is not None:
            return
        body = self._body
        if body is None:
            self._parts.append(piece)
            return
        try:
            was_busy = body.work is not None
            body.feed(piece)
            self._keep_of(body)
            if body.work is not None:
                if not was_busy:
                    self._work(body, self._go_on_receiving)
            elif self._body_left and isinstance(body, StreamedBody) and body.room() is not None:
                # From here on the kernel writes directly into the tensor's memory.
                self.transport.set_protocol(BodyReceiver(self, body))
        except InferenceError as error:
            self._refuse(body, error)

    def _keep_of(self, body: Body) -> None:
        """Account for bytes of a body buffered outside its model's memory."""
        if body.private_bytes > MAX_KEPT_BYTES or self._kept_bytes:
            self.keep(body.private_bytes)

    def _work(self, body: Body, go_on: Callable[[], None]) -> None:
        """Do a body's work in slices; the client may continue to send, up to a limit."""

        def step() -> bool:
            work = body.work
            if self._lost or self._closing or work is None:
                body.release()
                return False
            try:
                if next(work, _DONE) is _DONE:
                    body.work = None
                self._keep_of(body)
            except InferenceError as error:
                self._refuse(body, error)
            except Exception:  # the client gets an answer, whatever it sent
                log.exception("A request could not be handled")
                self._refuse(body, InferenceError(INTERNAL))
            if body.work is not None:
                return True
            go_on()
            return False

        self.flow.pause_reading()
        self.slices.add(step)

    def _go_on_receiving(self) -> None:
        """Continue after the JSON part was parsed, or the body was refused: receive the rest."""
        self.flow.resume_reading()
        body = self._body
        assert body is not None
        if self._message_done:
            self.claimed_complete()
        elif (
            self._refusal is None
            and self._body_left
            and not self._chunked
            and isinstance(body, StreamedBody)
            and body.room() is not None
        ):
            self.transport.set_protocol(BodyReceiver(self, body))

    def received_directly(self, body: StreamedBody, count: int) -> None:
        """Handle ``count`` bytes written by the receiver."""
        self._active_at = self._clock.seconds
        self._received_bytes += count
        self._body_left -= count
        try:
            body.advance(count)
            if self._body_left:
                body.room()
        except InferenceError as error:
            self._refuse(body, error)
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A request could not be handled")
            self.fail()
            return
        if self._body_left == 0 or self._refusal is not None:
            self.transport.set_protocol(self)
            if self._body_left == 0:
                self._complete_unparsed()

    def _drop_slowest_sender(self) -> bool:
        """Disconnect the slowest of the slow clients whose bodies hold memory that others need; False if none does."""
        return self._frontend.senders.drop_slowest(self, self._admission)

    def holds_memory_for(self, other: Admission | None) -> bool:
        """True while an arriving body holds leased memory that the other request could use."""
        own = self._admission
        if own is None or other is None or self._body is None or self._message_done or self._closing:
            return False
        return own.has_room and own.shares_memory_with(other)

    def make_room(self) -> None:
        """Disconnect a slow client, because others need the memory."""
        self._closing = True
        if self._body is not None and not self._message_done:
            self._body.release()
        super().make_room()

    def _refuse(self, body: Body, error: InferenceError) -> None:
        """Drop a body, and answer with an error once it has arrived.

        The error's traceback would keep this object and all that has arrived until the garbage collector runs.
        """
        self._refusal = error.again()
        body.release()

    def fail(self) -> None:
        """Answer a request with 500 after an unexpected error, and end the connection."""
        if self._body is not None:
            self._body.release()
        super().fail()

    def claimed_complete(self) -> None:
        """Submit the complete request, or send an error; large bodies need some work first."""
        body = self._body
        if body is not None and self._refusal is None:
            if body.work is not None:
                return  # the JSON part is still being parsed
            try:
                body.complete()
            except InferenceError as error:
                self._refuse(body, error)
            if body.work is not None:
                self._work(body, self._submit_when_read)
                return
        self._submit()

    def _submit_when_read(self) -> None:
        self.flow.resume_reading()
        self._submit()

    def _submit(self) -> None:
        body, admission, frontend = self._body, self._admission, self._frontend
        if self._refusal is not None:
            self._answer_unsubmitted(self._refusal)
            return
        try:
            assert admission is not None
            if body is None:
                admission.renew()
                whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                plans = frontend.plans.of(admission.signature)
                plan = decode_body(whole, self._header_length, admission, frontend.limits, plans)
            else:
                plan = body.finish()
            if self._forwarded is not None:
                add_parameters(plan.request, self._forwarded)
            self._format = plan.output_format
            if self._exchange is not None:
                self._exchange.asks(admission.model_name, admission.model_version, plan.request.id)
                self._exchange.continues(None if self._context is None else self._context[0])
            if frontend.engine.tracer.active:
                trace = frontend.traced(admission, plan.request, self._context, self._began_ns)
                if trace is not None:
                    self._exchange = self._watch.begin_traced(self._exchange, trace)
            self._pending = admission.submit(plan.request, self.on_response, plan.checked)
            self._body = None  # nothing else may keep the request, which may keep a client's shared memory
            if self._kept_bytes:
                self.keep(0)
        except InferenceError as error:
            self._answer_unsubmitted(error)

    def _answer_unsubmitted(self, error: InferenceError) -> None:
        if self._body is not None:
            self._body.release()
        name = self._refused_model if self._admission is None else self._admission.full_name
        if self._exchange is not None and not self._exchange.about:
            self._exchange.asks(name)
            self._exchange.continues(None if self._context is None else self._context[0])
        self._answer_refusal(name, error)

    def refused_connection(self, message: str) -> None:
        """Count a request that is not HTTP."""
        refusals = self._frontend.engine.refusals
        refusals.add(HTTP_CLIENT.protocol, RefusalReason.MALFORMED, message, sender=self.address)

    # The response

    def on_response(self, response: InferenceResponse) -> None:
        """Send the answer to the submitted request."""
        self._pending = None
        if self._lost or self._closing:
            response.release()
            return
        if response.error is not None:
            self.answer_error(response.error)
            return
        assert self._format is not None
        if self._sent_small(response):
            return
        self.unread = (response,)
        if is_large(response, self._format):
            answer_in_pieces(self, response, self._format, takes_chunks=self._takes_chunks)
            return
        try:
            encoded = encode_response(response, self._format)
        except InferenceError as error:
            response.release()
            self.answer_error(error)
            return
        except Exception:  # the client gets a response, whatever the model's outputs do to the encoder
            log.exception("A response of model '%s' cannot be encoded", response.model_name)
            response.release()
            self.answer_error(InferenceError(INTERNAL))
            return
        self.send(encoded, response)

    def send(self, encoded: EncodedResponse, response: InferenceResponse) -> None:
        """Send a complete response, and release it once it is sent."""
        if self.coding is not None:
            if encoded.body_bytes > DEFLATED_SLICE_BYTES:
                answer_compressed(self, encoded, response)
                return
            encoded = compressed(encoded, self.coding)
        if encoded.body_bytes > MAX_KEPT_BYTES:
            try:
                self.keep(max(encoded.body_bytes, self._kept_bytes))
            except InferenceError as error:
                response.release()
                self.answer_error(error)
                return
        self._frontend.answers.ok += 1
        if self._exchange is not None:
            self._exchange.status, self._exchange.sent_bytes = 200, encoded.body_bytes
        if encoded.json_length is None:
            head = JSON_HEAD % encoded.body_bytes
        else:
            head = BINARY_HEAD % (encoded.json_length, encoded.body_bytes)
        head = self._head_of(head)
        if (encoded.borrows_memory or encoded.body_bytes > MAX_KEPT_BYTES) and not is_secure(self.transport):
            self._write_borrowed(head, encoded, response)
        else:
            whole = b"".join((head, encoded.header_json, *encoded.chunks))
            response.release()
            if self._kept_bytes:
                self.keep(0)  # from now on the transport's buffer counts
            self.transport.write(whole)
            self.answered()

    def _head_of(self, head: bytes) -> bytes:
        """The head with the fields that few answers have."""
        if self.coding is not None or self._exchange is not None:
            head = with_rare_fields(head, self.coding, b"" if self._exchange is None else self._exchange.traceparent)
        if self._answer_fields or not self._keep_alive or self._is_1_0:
            head = head[:-2] + self._own_fields() + b"\r\n"
        return head

    def _write_borrowed(self, head: bytes, encoded: EncodedResponse, response: InferenceResponse) -> None:
        """Send views of the response's memory, and release it only after the kernel has taken the last byte.

        The transport keeps a view of the bytes that the socket does not take; memory released earlier would contain
        another client's data by the time it is sent. With a high-water mark of 0 the transport reports an empty buffer.
        """
        transport = self.transport
        transport.set_write_buffer_limits(high=0, low=0)
        chunks: list[Buffer] = [head + encoded.header_json, *encoded.chunks]
        transport.writelines(chunks)

        def drained() -> None:
            response.release()
            if not self._lost:
                self.keep(0)
                transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)
                self.answered()

        if transport.get_write_buffer_size() == 0:
            drained()
        else:
            self._after_drain = drained

    def answer_error(self, error: InferenceError) -> None:
        """Send an error response."""
        self.keep(0)
        self._write_error(
            STATUS[error.code], error.message, _ACCEPTED if isinstance(error, UnsupportedCodingError) else b""
        )
        self.answered()

    # The response in pieces

    @property
    def slices(self) -> Slices:
        """The scheduler of long work."""
        return self._clock.slices

    @property
    def is_lost(self) -> bool:
        """True once the client or the server has closed the connection."""
        return self._lost or self._closing

    def begin_chunks(self, json_length: int | None = None) -> None:
        """Send the head of a chunked response; with ``json_length``, binary tensors follow JSON of that length."""
        self._frontend.answers.ok += 1
        if self._exchange is not None:
            self._exchange.status = 200
        self.write(self._head_of(CHUNKS_HEAD if json_length is None else BINARY_CHUNKS_HEAD % json_length))

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        if self._exchange is not None:
            self._exchange.sent_bytes += len(data)
        self.transport.write(data)

    def waits_for_reader(self, go_on: Callable[[], None]) -> bool:
        """True if the client reads too slowly; ``go_on`` is then called when it has caught up or disconnected."""
        if self._write_paused:
            self._after_drain = go_on
        return self._write_paused

    def abort(self) -> None:
        """Close the connection in the middle of a response that cannot be completed."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side: cancel its queued request."""
        super().connection_lost(exc)
        self._frontend.senders.discard(self)
        if self._pending is not None:
            self._pending.cancel()
        body, self._body = self._body, None  # it has a reference to this object
        if body is not None and not self._message_done:
            body.release()
