"""HTTP/1.1 connections on top of uvicorn's protocol class: one request at a time, whoever answers it.

All knowledge of uvicorn's inner life is in this module; the tests in ``tests/integration/http`` hold the contract that the
upper bound of uvicorn's version stands for.

What a client sends before it has its answer is kept, up to a bound, and then reading pauses; so a client that goes away
is noticed even while its request runs, and a request can never overtake another one on its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybackend.frontend.http.chunked_end import ChunkedBodyError, ChunkedEnd
from pybackend.protocol.metadata import encode_error

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_KEPT_BYTES = 64 * 1024
"""How much of the next requests is kept while one is answered; then reading pauses."""

STALLED_SECONDS = 60
"""A client that neither sends the rest of its request nor reads its reply for this long is disconnected."""

IDLE_SECONDS = 600
"""A connection without any request is closed after this long; long, because clients pool connections."""

_PHRASES = {
    400: b"Bad Request",
    404: b"Not Found",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}


class ConnectionClock:
    """What all connections of a port share.

    Attributes:
        seconds: advanced once a second by the server; reading it costs nothing, unlike a timer per connection.
        closing: True once the server stops: connections end with the answer under way.
        ended: set when a connection has ended.
    """

    def __init__(self) -> None:
        self.seconds = 0
        self.closing = False
        self.ended = asyncio.Event()


class SerialProtocol(HttpToolsProtocol):
    """A connection. A subclass may claim requests and answer them itself; ASGI gets the others."""

    def __init__(
        self, config: Config, server_state: ServerState, clock: ConnectionClock, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._clock = clock
        self._active_at = clock.seconds
        self._kept = bytearray()
        self._closing = False
        self._lost = False
        self._write_paused = False
        self._after_drain: Callable[[], None] | None = None
        self._start_message()

    def _start_message(self) -> None:
        self._in_head = True
        self._seen = b""
        self._head = b""
        self._head_bytes = 0
        self._headers_done = False
        self._body_left = 0
        self._chunked = False
        self._message_done = False
        self._answer_done = False
        self._claimed = False
        self._parser_fed = False
        self._bypasses_parser = False
        self._resumes_body = False
        self._keep_alive = True

    # For subclasses

    def recognise(self, head: bytes) -> bool:
        """A complete head as it was sent; True if this object knows it and needs no parser to claim the request."""
        return False

    def claim(self) -> bool:
        """The head is complete; True if this object answers the request."""
        return False

    def claimed_body(self, piece: bytes) -> None:
        """The next bytes of a claimed request's body; with ``_bypasses_parser`` they are seen by nobody else."""

    def claimed_complete(self) -> None:
        """A claimed request is complete; :meth:`_answered` must follow, now or later."""

    # Framing: one message at a time reaches the parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        # With a low-water mark of 0, resume_writing means that the kernel has everything.
        self.transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._active_at = self._clock.seconds
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
        except ChunkedBodyError as error:
            self._refuse_connection(400, str(error))
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, httptools.HttpParserInvalidURLError):
                self._refuse_connection(400, "Invalid HTTP request received: its target is no path")
                return
            log.exception("a request could not be handled")
            self._refuse_connection(500, "internal error: see the server's log")
        except httptools.HttpParserError:
            self._refuse_connection(400, "Invalid HTTP request received: it is not HTTP/1.1 as RFC 9112 defines it")

    def _feed(self, data: bytes) -> None:
        """Let the parser see bytes of one message."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Some clients offer an upgrade with every first request. None is taken up: the request is answered as it
            # is. The parser believes that HTTP ends with the head, so another one gets the body, behind a short head.
            self.parser = httptools.HttpRequestParser(self)
            if self._resumes_body:
                framing = b"transfer-encoding: chunked" if self._chunked else b"content-length: %d" % self._body_left
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                self._resumes_body = False

    def _consume_head(self, data: bytes) -> bytes:
        probe = self._seen + data if self._seen else data
        end = probe.find(b"\r\n\r\n")
        if end == 0 and not self._seen:
            return data.lstrip(b"\r\n")  # empty lines before a request line are legal and no head
        cut = len(data) if end < 0 else end + 4 - len(self._seen)
        self._head_bytes += cut
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_connection(431, f"the request's head exceeds {MAX_HEAD_BYTES} bytes")
            return b""
        head = data if cut == len(data) else data[:cut]
        if end >= 0 and self._head_bytes == cut:
            if self.recognise(head):
                self._headers_done = self._claimed = self._bypasses_parser = True
                self._in_head = False
                return data[cut:]
            self._head = head
        self._parser_fed = True
        self._feed(head)
        self._seen = probe[-3:] if end < 0 else b""
        self._in_head = not self._headers_done
        return data[cut:]

    def _consume_body(self, data: bytes) -> bytes:
        if self._chunked:
            end = self._chunked_end.find(data)
            self._feed(data if end == len(data) else data[:end])
            return data[end:]
        piece = data if len(data) <= self._body_left else data[: self._body_left]
        self._body_left -= len(piece)
        if self._claimed:
            self.claimed_body(piece)
        if not self._bypasses_parser:
            # Small bodies go through the parser too: it stays in step, and says when the message is complete.
            self._feed(piece)
        elif self._body_left == 0:
            self._complete_unparsed()
        return data[len(piece) :]

    def _complete_unparsed(self) -> None:
        """The last byte of a body that the parser did not see is there."""
        if self._parser_fed:
            self.parser = httptools.HttpRequestParser(self)
        self._message_done = True
        self.claimed_complete()

    def on_message_begin(self) -> None:
        """The parser has seen a request line begin."""
        if self._headers_done:
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
        for name, value in self.headers:
            size = len(name)
            if size == 14 and name.lower() == b"content-length":
                self._body_left = int(value)
            elif size == 17 and name.lower() == b"transfer-encoding":
                self._chunked, self._chunked_end = True, ChunkedEnd()
            elif size == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
        self._resumes_body = self.parser.should_upgrade() and (self._chunked or self._body_left > 0)
        self._claimed = self.claim()
        if not self._claimed:
            self._start_asgi()
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of a body that the parser sees."""
        if not self._claimed:
            super().on_body(body)
        elif self._chunked and not self._message_done:
            self.claimed_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._message_done or self._resumes_body:
            return
        self._message_done = True
        if self._claimed:
            self.claimed_complete()
        else:
            super().on_message_complete()
            self._next_if_done()

    # ASGI

    def _start_asgi(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend((name.lower(), value) for name, value in headers)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An ASGI response is out."""
        self.server_state.total_requests += 1
        self._answer_done = True
        self.flow.resume_reading()  # a body that the application did not read is dropped as it comes
        self._next_if_done()

    # Answers of claimed requests

    def _write_error(self, status: int, message: str) -> None:
        body = encode_error(message)
        close = b"" if self._keep_alive else b"connection: close\r\n"
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, _PHRASES.get(status, b"Error"), close, len(body), body)
        )

    def _answered(self) -> None:
        """The answer is written, and what it borrowed is given back."""
        if self._write_paused and self._after_drain is None:
            # A client that does not read gets no further answers, only what the transport holds already.
            self._after_drain = self._answered
            return
        self.server_state.total_requests += 1
        self._answer_done = True
        self._next_if_done()

    def _next_if_done(self) -> None:
        """Go on with the next request once this one is complete and answered."""
        if not (self._message_done and self._answer_done) or self._lost:
            return
        if not self._keep_alive or self._clock.closing:
            self._closing = True
            self.transport.close()
            return
        self._active_at = self._clock.seconds
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
        self._active_at = self._clock.seconds
        super().resume_writing()
        self._drained()

    def _drained(self) -> None:
        after, self._after_drain = self._after_drain, None
        if after is not None:
            after()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client, or we, closed the connection."""
        self._lost = True
        self._drained()  # nothing is sent any more: what an answer borrowed goes back
        super().connection_lost(exc)
        self._clock.ended.set()

    def shutdown(self) -> None:
        """The server stops: close now if nothing is under way, else after the answer."""
        if self._headers_done:
            self._keep_alive = False
            if not self._claimed:
                super().shutdown()
        else:
            self._closing = True
            self.transport.close()

    def check_progress(self) -> None:
        """Called about once a second: end a connection on which nothing moves any more."""
        quiet = self._clock.seconds - self._active_at
        if quiet < STALLED_SECONDS:
            return
        reading = not self._message_done and (self._headers_done or self._head_bytes > 0)
        if reading or self._write_paused:
            log.info("a connection is closed: its client neither sent nor read anything for %d s", quiet)
            self.transport.abort()
        elif quiet >= IDLE_SECONDS and not self._message_done:
            self.transport.close()
