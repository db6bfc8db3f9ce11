"""The HTTP protocol object: answers infer itself, by callbacks, and leaves every other request to uvicorn's ASGI way.

All knowledge of uvicorn's insides is in this module and in ``server``; ``tests/integration/http`` holds the contract that
the upper bound of uvicorn's version stands for. Per infer request there is no task, no future and no scope.

One request at a time per connection: what a client sends before it has its answer is kept, up to a bound, and then
reading pauses; so a client that goes away is noticed even while its request runs.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybackend.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http.errors import STATUS
from pybackend.frontend.http.infer_body import SMALL_BODY_BYTES, StreamedBody, decode_body
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.model.model import Model, ModelState
from pybackend.protocol.infer_plan import OutputFormat
from pybackend.protocol.infer_response import EncodedResponse, encode_response
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.metadata import encode_error
from pybackend.protocol.plan_cache import PlanCache

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_KEPT_BYTES = 64 * 1024
"""How much of the next requests is kept while one is answered; then reading pauses."""

STALLED_SECONDS = 60
"""A client that neither sends the rest of its request nor reads its reply for this long is disconnected."""

IDLE_SECONDS = 600
"""A connection without any request is closed after this long; long, because clients pool connections."""

_PATH = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([0-9]+))?/infer(?:\?.*)?")
_CACHED_PATHS = 1024

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
    b"content-length: %d\r\n\r\n"
)


class InferFrontend:
    """What all connections share.

    Attributes:
        engine: where requests go.
        limits: bounds of request bodies.
        seconds: a clock that the server advances once a second; reading it costs nothing.
        closing: True once the server stops: connections end with the answer under way.
    """

    def __init__(self, engine: InferenceEngine, limits: BodyLimits) -> None:
        self.engine = engine
        self.limits = limits
        self.seconds = 0
        self.closing = False
        self._targets: dict[bytes, tuple[str, str] | None] = {}
        self._plans: dict[Model, PlanCache] = {}

    def plans(self, model: Model) -> PlanCache:
        """The plans of requests that a model got before."""
        try:
            return self._plans[model]
        except KeyError:
            # Versions that were unloaded since the last new one came are forgotten here.
            self._plans = {known: plans for known, plans in self._plans.items() if known.state is ModelState.READY}
            return self._plans.setdefault(model, PlanCache())

    def target(self, url: bytes) -> tuple[str, str] | None:
        """Model name and version that an infer URL names; None for any other URL."""
        try:
            return self._targets[url]
        except KeyError:
            pass
        found = _PATH.fullmatch(url)
        target = None
        if found is not None:
            target = unquote(found[1].decode("latin-1"), "utf-8", "replace"), (found[2] or b"").decode()
        if len(self._targets) >= _CACHED_PATHS:
            self._targets.clear()
        self._targets[url] = target
        return target


class InferProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        frontend: InferFrontend,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._frontend = frontend
        self.lost = False
        self.active_at = frontend.seconds
        self._kept = bytearray()
        self._closing = False
        self._write_paused = False
        self._after_drain: Callable[[], None] | None = None
        self._start_message()

    # Framing: one message at a time reaches the parser

    def _start_message(self) -> None:
        self._in_head = True
        self._seen = b""
        self._head_bytes = 0
        self._headers_done = False
        self._body_left = 0
        self._chunked = False
        self._message_done = False
        self._answer_done = False
        self._is_infer = False
        self._keep_alive = True
        self._model: Model | None = None
        self._header_length: bytes | None = None
        self._parts: list[bytes] = []
        self._body: StreamedBody | None = None
        self._refusal: InferenceError | None = None
        self._format: OutputFormat | None = None
        self._pending: PendingRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        # With a low-water mark of 0, resume_writing means that the kernel has everything.
        self.transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self.active_at = self._frontend.seconds
        if self._message_done:
            self._keep(data)
        else:
            self._consume(data)

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > MAX_KEPT_BYTES:
            self.flow.pause_reading()

    def _consume(self, data: bytes) -> None:
        try:
            while data and not self._closing:
                if self._message_done:
                    self._keep(data)
                    return
                data = self._consume_head(data) if self._in_head else self._consume_body(data)
        except httptools.HttpParserUpgrade:
            self.parser = httptools.HttpRequestParser(self)  # no upgrade is offered: the request was answered as it is
        except httptools.HttpParserCallbackError:
            log.exception("a request could not be handled")
            self._refuse_connection(500, "internal error: see the server's log")
        except httptools.HttpParserError:
            self._refuse_connection(400, "Invalid HTTP request received: it is not HTTP/1.1 as RFC 9112 defines it")

    def _consume_head(self, data: bytes) -> bytes:
        probe = self._seen + data if self._seen else data
        end = probe.find(b"\r\n\r\n")
        if end < 0:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_connection(431, f"the request's head exceeds {MAX_HEAD_BYTES} bytes")
                return b""
            self.parser.feed_data(data)
            self._seen = probe[-3:]
            return b""
        cut = end + 4 - len(self._seen)
        self._seen = b""
        self.parser.feed_data(data if cut == len(data) else data[:cut])
        # Empty lines before a request line are legal and no head.
        self._in_head = not self._headers_done
        return data[cut:]

    def _consume_body(self, data: bytes) -> bytes:
        if self._chunked:
            self.parser.feed_data(data)
            return b""
        piece = data if len(data) <= self._body_left else data[: self._body_left]
        self._body_left -= len(piece)
        if self._body is None:
            # Small bodies go through the parser too: it stays in step, and says when the message is complete.
            if self._is_infer:
                self._parts.append(piece)
            self.parser.feed_data(piece)
        else:
            self._stream(piece)
            if self._body_left == 0:
                self._stream_complete()
            elif self._refusal is None:
                self._receive_directly()
        return data[len(piece) :]

    def on_message_begin(self) -> None:
        """The parser has seen a request line begin."""
        if self._headers_done:
            # Only behind a chunked body, whose end nobody but the parser sees, can a request be pipelined unnoticed.
            # It is not processed: closing after the answer tells the client to send it again.
            self._keep_alive = False
            return
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field, as it was sent."""
        if not self._headers_done:
            self.headers.append((name, value))

    def on_url(self, url: bytes) -> None:
        """The request target, or a part of it."""
        if not self._headers_done:
            self.url += url

    def on_headers_complete(self) -> None:
        """The head is complete: decide who answers."""
        if self._headers_done:
            return
        self._headers_done = True
        self._keep_alive = self.parser.should_keep_alive()
        encoding = b""
        for name, value in self.headers:
            size = len(name)
            if size == 14 and name.lower() == b"content-length":
                self._body_left = int(value)
            elif size == 31 and name.lower() == b"inference-header-content-length":
                self._header_length = value
            elif size == 17 and name.lower() == b"transfer-encoding":
                self._chunked = True
            elif size == 16 and name.lower() == b"content-encoding":
                encoding = value
            elif size == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
        target = self._frontend.target(self.url)
        if target is None or self.parser.get_method() != b"POST":
            self._start_asgi()
        else:
            self._start_infer(target, encoding)

    def on_body(self, body: bytes) -> None:
        """A piece of a body that the parser sees."""
        if not self._is_infer:
            super().on_body(body)
        elif self._chunked and not self._message_done:
            self._stream(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._message_done:
            return
        self._message_done = True
        if not self._is_infer:
            super().on_message_complete()
            self._next_if_done()
        elif self._chunked:
            self._finish(self._body)
        else:
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._finish(body)

    # ASGI

    def _start_asgi(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend((name.lower(), value) for name, value in headers)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An ASGI response is out."""
        self._answer_done = True
        self._next_if_done()

    # Infer

    def _start_infer(self, target: tuple[str, str], encoding: bytes) -> None:
        self._is_infer = True
        frontend = self._frontend
        try:
            self._model = frontend.engine.model(*target)
            if encoding and encoding.lower() != b"identity":
                raise InferenceError(
                    "Unsupported compression type: this server takes request bodies without content-encoding only",
                    ErrorCode.UNSUPPORTED,
                )
            if self._chunked or self._body_left > SMALL_BODY_BYTES:
                length = None if self._chunked else self._body_left
                self._body = StreamedBody(self._model, self._header_length, length, frontend.limits)
        except InferenceError as error:
            # The body is read and dropped: a client that is still sending does not read an answer.
            self._refusal = error
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _finish(self, body: bytes | StreamedBody | None) -> None:
        """The body is there: submit the request, or answer why not."""
        plan = None
        try:
            if self._refusal is not None:
                raise self._refusal
            model, frontend = self._model, self._frontend
            assert model is not None
            if type(body) is bytes:
                plan = decode_body(body, self._header_length, model, frontend.limits, frontend.plans(model))
            else:
                assert isinstance(body, StreamedBody)
                plan = body.finish()
            self._format = plan.output_format
            self._pending = frontend.engine.submit(model, plan.request, self._on_response)
        except InferenceError as error:
            if isinstance(body, StreamedBody):
                body.release()
            if plan is not None:
                plan.request.release()
            self._answer_error(error)

    # Large bodies

    def _stream(self, piece: bytes) -> None:
        if self._refusal is None and self._body is not None:
            try:
                self._body.feed(piece)
            except InferenceError as error:
                self._refuse_stream(error)

    def _refuse_stream(self, error: InferenceError) -> None:
        self._refusal = error
        if self._body is not None:
            self._body.release()

    def _receive_directly(self) -> None:
        """From here on the kernel writes into the tensor's own memory."""
        assert self._body is not None
        try:
            if self._body.room() is None:
                return
        except InferenceError as error:
            self._refuse_stream(error)
            return
        self.transport.set_protocol(_BodyReceiver(self, self._body))

    def received_directly(self, body: StreamedBody, count: int) -> None:
        """The receiver has written ``count`` bytes."""
        self.active_at = self._frontend.seconds
        self._body_left -= count
        body.advance(count)
        if self._body_left == 0:
            self.transport.set_protocol(self)
            self._stream_complete()
            return
        try:
            body.room()
        except InferenceError as error:
            self._refuse_stream(error)
            self.transport.set_protocol(self)

    def _stream_complete(self) -> None:
        self.parser = httptools.HttpRequestParser(self)  # the old one has not seen the body
        self._message_done = True
        self._finish(self._body)

    # Answers

    def _on_response(self, response: InferenceResponse) -> None:
        self._pending = None
        if self.lost or self._closing:
            response.release()
            return
        if response.error is not None:
            self._answer_error(response.error)
            return
        assert self._format is not None
        try:
            encoded = encode_response(response, self._format)
        except InferenceError as error:
            response.release()
            self._answer_error(error)
            return
        if encoded.json_length is None:
            head = _JSON_HEAD % encoded.body_bytes
        else:
            head = _BINARY_HEAD % (encoded.json_length, encoded.body_bytes)
        if not self._keep_alive:
            head = head[:-2] + b"connection: close\r\n\r\n"
        if encoded.borrows_memory:
            self._write_borrowed(head, encoded, response)
        else:
            response.release()
            self.transport.write(b"".join((head, encoded.header_json, *encoded.chunks)))
            self._answered()

    def _write_borrowed(self, head: bytes, encoded: EncodedResponse, response: InferenceResponse) -> None:
        """Send views of the response's memory, and give it back only when the kernel has taken the last byte.

        The transport keeps a view of what the socket does not take; a lease freed before would carry another client's
        data by the time it is sent. With a high-water mark of 0 the transport says when nothing is left.
        """
        transport = self.transport
        transport.set_write_buffer_limits(high=0, low=0)
        chunks: list[Buffer] = [head + encoded.header_json, *encoded.chunks]
        transport.writelines(chunks)

        def drained() -> None:
            response.release()
            if not self.lost:
                transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)
                self._answered()

        if transport.get_write_buffer_size() == 0:
            drained()
        else:
            self._after_drain = drained

    def _answer_error(self, error: InferenceError) -> None:
        self._write_error(STATUS[error.code], error.message)
        self._answered()

    def _write_error(self, status: int, message: str) -> None:
        body = encode_error(message)
        phrase = _phrase(status)
        close = b"" if self._keep_alive else b"connection: close\r\n"
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, phrase, close, len(body), body)
        )

    def _answered(self) -> None:
        """The answer of an infer request is written."""
        if self._write_paused and self._after_drain is None:
            # A client that does not read gets no further answers, only what the transport holds already.
            self._after_drain = self._answered
            return
        self._answer_done = True
        self._next_if_done()

    def _next_if_done(self) -> None:
        """Go on with the next request once this one is complete and answered."""
        if not (self._message_done and self._answer_done) or self.lost:
            return
        if not self._keep_alive or self._frontend.closing:
            self._closing = True
            self.transport.close()
            return
        self.active_at = self._frontend.seconds
        self._start_message()
        if self._kept:
            data = bytes(self._kept)
            self._kept.clear()
            self.flow.resume_reading()
            self._consume(data)

    def _refuse_connection(self, status: int, message: str) -> None:
        """Answer what is not HTTP, and close."""
        self._keep_alive = False
        self._closing = True
        if not self.transport.is_closing():
            self._write_error(status, message)
            self.transport.close()

    # Connection events

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        self._write_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self._write_paused = False
        self.active_at = self._frontend.seconds
        super().resume_writing()
        after, self._after_drain = self._after_drain, None
        if after is not None:
            after()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client, or we, closed the connection."""
        self.lost = True
        if self._pending is not None:
            self._pending.cancel()
        if self._body is not None and not self._message_done:
            self._body.release()
        after, self._after_drain = self._after_drain, None
        if after is not None:
            after()  # nothing is sent any more: what the answer borrowed goes back
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: close now if nothing is under way, else after the answer."""
        if self._headers_done and not (self._is_infer and self._answer_done):
            self._keep_alive = False
            if not self._is_infer:
                super().shutdown()
        else:
            self._closing = True
            self.transport.close()

    def check_progress(self) -> None:
        """Called about once a second: end a connection on which nothing moves any more."""
        quiet = self._frontend.seconds - self.active_at
        if quiet < STALLED_SECONDS:
            return
        reading = not self._message_done and (self._headers_done or self._head_bytes > 0 or bool(self._seen))
        if reading or self._write_paused:
            log.info("a connection is closed: its client neither sent nor read anything for %d s", quiet)
            self.transport.abort()
        elif quiet >= IDLE_SECONDS and not self._message_done:
            self.transport.close()


class _BodyReceiver(asyncio.BufferedProtocol):
    """Stands in for the connection's protocol while the bytes of large tensors arrive."""

    def __init__(self, owner: InferProtocol, body: StreamedBody) -> None:
        self._owner = owner
        self._body = body

    def get_buffer(self, sizehint: int) -> Any:
        return self._body.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._owner.received_directly(self._body, nbytes)

    def eof_received(self) -> None:
        self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)


def _phrase(status: int) -> bytes:
    return _PHRASES.get(status, b"Error")


_PHRASES = {
    400: b"Bad Request",
    404: b"Not Found",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}
