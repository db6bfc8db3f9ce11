"""HTTP/1.1 connections based on uvicorn's protocol class, processing one request at a time.

All knowledge of uvicorn's internals is in this module; the tests in ``tests/integration/http`` verify the assumptions
behind the upper bound on uvicorn's version.

Bytes that a client sends before it has its response are buffered, up to a limit; then reading pauses. A client that
disconnects is therefore noticed while its request runs, and requests never overtake each other on a connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybackend.frontend.http.chunked_end import ChunkedBodyError, ChunkedEnd
from pybackend.frontend.http.connection_clock import ConnectionClock
from pybackend.frontend.http.errors import INTERNAL
from pybackend.frontend.http.lingering import LingeringProtocol
from pybackend.frontend.http.watched_app import watched
from pybackend.frontend.pace import IDLE_SECONDS, LOWEST_RATE_BYTES_PER_S, Pace, unsent_bytes
from pybackend.frontend.slices import Turn
from pybackend.frontend.watch import Exchange
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.metadata import encode_error

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
MAX_KEPT_BYTES = 64 * 1024
"""Bytes of further requests buffered while one is being answered; beyond, reading pauses."""

_PHRASES = {
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}

_HOST = re.compile(rb"[ \t]*([A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(%25[A-Za-z0-9._~-]+)?\])(:[0-9]*)?[ \t]*")
"""``uri-host [ ":" port ]`` of RFC 9110; empty for targets without an authority."""


class _RefusedHeadError(Exception):
    """A head that the parser accepts and RFC 9112 does not; ``status`` is the answer's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(f"Invalid HTTP request received: {message}")
        self.status = status


def _check_head(version: str, hosts: list[bytes], codings: list[bytes]) -> None:
    """See that a head is HTTP/1.1 or HTTP/1.0, where servers could understand it differently.

    Args:
        version: of HTTP.
        hosts: values of ``Host``.
        codings: those of ``Transfer-Encoding``, in lower case.

    Raises:
        _RefusedHeadError: it is not.
    """
    if version not in {"1.1", "1.0"}:
        raise _RefusedHeadError(f"this server speaks HTTP/1.1, and not HTTP/{version}", 505)
    if len(hosts) != 1 and (hosts or version == "1.1"):
        raise _RefusedHeadError(f"it has {len(hosts)} fields Host, and needs one (RFC 9112, section 3.2)")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise _RefusedHeadError("its field Host is no name or address with an optional port (RFC 9112, section 3.2)")
    if not codings:
        return
    if version != "1.1":
        raise _RefusedHeadError("Transfer-Encoding needs HTTP/1.1 (RFC 9112, section 6.1)")
    if codings[-1] != b"chunked" or codings.count(b"chunked") > 1:
        raise _RefusedHeadError(
            "the last transfer coding must be chunked, which must come once (RFC 9112, section 6.3)"
        )
    if len(codings) > 1:
        raise _RefusedHeadError(
            "the only transfer coding of this server is chunked. Compress a body with Content-Encoding instead", 501
        )


def _kept_alive(app: Any) -> Any:
    """The application for a client that speaks HTTP/1.0 and asks to keep the connection: each answer says whether it is kept.

    It is not if only its end can tell where the answer ends.
    """

    async def telling(scope: Any, receive: Any, send: Any) -> None:
        async def adding(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                if b"connection" not in names:
                    word = b"keep-alive" if b"content-length" in names else b"close"
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", word)]}
            await send(message)

        await app(scope, receive, adding)

    return telling


class SerialProtocol(HttpToolsProtocol):
    """A connection. A subclass may claim requests and answer them; all others go to ASGI."""

    unread: Sequence[InferenceResponse] = ()
    """See :class:`~pybackend.frontend.kept_bytes.Keeper`."""

    def __init__(
        self, config: Config, server_state: ServerState, clock: ConnectionClock, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._clock = clock
        self._watch = clock.watch
        self._active_at = clock.seconds
        self._checked_at = clock.seconds
        self.pace = Pace()
        self._kept_bytes = self._buffered_bytes = 0
        self._received_bytes = self._received_then = self._unsent_then = self._taken_bytes = 0
        self._kept = bytearray()
        self._turn = Turn(loop)
        self._closing = False
        self._lost = False
        self._write_paused = False
        self._after_drain: Callable[[], None] | None = None
        self._start_message()

    def _start_message(self) -> None:
        self._in_head = True
        self._seen = b""
        self._head = b""
        self._head_error: Exception | None = None
        self._head_bytes = 0
        self._headers_done = False
        self._body_left = 0
        self._chunked = False
        self._message_done = False
        self._answer_done = False
        self._claimed = False
        self._in_asgi = False
        self._parser_fed = False
        self._bypasses_parser = False
        self._resumes_body = False
        self._keep_alive = True
        self._is_1_0 = False
        self._exchange: Exchange | None = None
        self._answer_fields = b""
        # As uvicorn begins: an idle connection keeps no head, which may have credentials.
        self.headers = self.scope = self.cycle = None  # type: ignore[assignment]

    # For subclasses

    def recognise(self, head: bytes) -> bool:
        """Called with a complete head; True if this object knows it and can claim the request without the parser."""
        return False

    def claim(self) -> bool:
        """Called when the head is complete; True if this object answers the request."""
        return False

    def claimed_body(self, piece: bytes) -> None:
        """The next bytes of a claimed request's body; with ``_bypasses_parser`` the parser does not see them."""

    def claimed_complete(self) -> None:
        """A claimed request is complete; :meth:`_answered` must follow, immediately or later."""

    def refused_connection(self, message: str) -> None:
        """Called when the client's bytes are not HTTP and the connection ends; ``message`` is the answer."""

    # Framing: one message at a time reaches the parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        # With a low-water mark of 0, resume_writing means that the kernel has taken everything.
        self.transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._active_at = self._clock.seconds
        self._received_bytes += len(data)
        if self._message_done or self._kept:
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
                if data and self._in_head and self._turn.is_over():  # the one before was refused at once
                    self._keep(data)
                    self.flow.pause_reading()
                    self._clock.slices.add(self._consume_next)
                    return
        except ChunkedBodyError as error:
            self._refuse_connection(400, str(error))
        except httptools.HttpParserCallbackError as error:
            self._refuse_head(self._head_error or error)
        except httptools.HttpParserError:
            self._refuse_connection(400, "Invalid HTTP request received: it is not HTTP/1.1 as RFC 9112 defines it")
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A request could not be handled")
            self.fail()

    def _consume_next(self) -> bool:
        """Go on with requests that waited for their turn; False, because more of them wait again."""
        if not (self._lost or self._closing):
            self._consume_kept()
        return False

    def _consume_kept(self) -> None:
        data = bytes(self._kept)
        self._kept.clear()
        self.flow.resume_reading()
        self._consume(data)

    def _refuse_head(self, error: Exception) -> None:
        if isinstance(error, _RefusedHeadError):
            self._refuse_connection(error.status, str(error))
        elif isinstance(error, httptools.HttpParserInvalidURLError):
            self._refuse_connection(400, "Invalid HTTP request received: its target is not a path")
        else:
            log.error("A request could not be handled", exc_info=error)
            self.fail()

    def fail(self) -> None:
        """Answer a request with 500 after an unexpected error, and end the connection."""
        if self._in_asgi or self._answer_done:
            self._refuse_connection(500, INTERNAL)
        else:
            self._deny(500, INTERNAL)

    def _feed(self, data: bytes) -> None:
        """Pass bytes of one message to the parser."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Some clients offer an upgrade with every first request. The server ignores the offer and answers the
            # request. This parser considers HTTP ended after the head, so a new one gets the body, after a short head.
            self.parser = httptools.HttpRequestParser(self)
            if self._resumes_body:
                framing = b"transfer-encoding: chunked" if self._chunked else b"content-length: %d" % self._body_left
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                self._resumes_body = False

    def _consume_head(self, data: bytes) -> bytes:
        probe = self._seen + data if self._seen else data
        end = probe.find(b"\r\n\r\n")
        if end == 0 and not self._seen:
            return data.lstrip(b"\r\n")  # empty lines before a request line are legal
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
                if self._watch.on:
                    method, target, *_ = head.split(b" ", 2)
                    self._begin_exchange(method, target)
                return data[cut:]
            self._head = head
        self._parser_fed = True
        self._feed(head)
        self._seen = probe[-3:] if end < 0 else b""
        self._in_head = not self._headers_done
        return data[cut:]

    def _consume_body(self, data: bytes) -> bytes:
        if self._chunked:
            chunks = self._chunked_end
            end = chunks.find(data)
            self._feed(data if chunks.framing_bytes == len(data) else data[: chunks.framing_bytes])
            if chunks.is_complete:
                self._feed(b"\r\n")
            return data[end:]
        piece = data if len(data) <= self._body_left else data[: self._body_left]
        self._body_left -= len(piece)
        if self._claimed:
            self.claimed_body(piece)
        if not self._bypasses_parser:
            # Small bodies go through the parser, which stays in step and reports the end of the message.
            self._feed(piece)
        elif self._body_left == 0:
            self._complete_unparsed()
        return data[len(piece) :]

    def _complete_unparsed(self) -> None:
        """Handle the last byte of a body that bypassed the parser."""
        if self._parser_fed:
            self.parser = httptools.HttpRequestParser(self)
        self._message_done = True
        self.claimed_complete()

    def on_message_begin(self) -> None:
        """Handle the start of a request line."""
        if self._headers_done:
            return
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a raw header field."""
        if not self._headers_done:
            self.headers.append((name, value))

    def on_url(self, url: bytes) -> None:
        """Handle the request target, or a part of it."""
        if not self._headers_done:
            self.url += url

    def on_headers_complete(self) -> None:
        """Handle the end of the head: decide who answers."""
        if self._headers_done:
            return
        try:
            self._take_head()
        except Exception as error:
            # The parser raises another one. While an answer to what came before is an error being handled, that one's
            # context is the error, and not this.
            self._head_error = error
            raise

    def _take_head(self) -> None:
        self._headers_done = True
        self._keep_alive = self.parser.should_keep_alive()
        self._read_framing()
        if self._watch.on:
            self._begin_exchange(self.parser.get_method(), self.url)
        if self._clock.cors is not None:
            self._answer_fields = self._clock.cors.answer_fields(self.headers)
        if self._clock.guard is not None:
            refused = self._clock.guard.refusal(self.parser.get_method(), self.url, self.headers, self.address)
            if refused is not None:
                self._deny(refused.status, refused.message, refused.fields)
                return
        self._resumes_body = self.parser.should_upgrade() and (self._chunked or self._body_left > 0)
        self._claimed = self.claim()
        if not self._claimed:
            self._start_asgi()
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_framing(self) -> None:
        """Find how long the body is, and refuse heads that servers could understand differently."""
        codings: list[bytes] = []
        hosts: list[bytes] = []
        for name, value in self.headers:
            size = len(name)  # tells most fields apart, at less cost than their names
            if size == 4 and name.lower() == b"host":
                hosts.append(value)
            elif size == 14 and name.lower() == b"content-length":
                # The parser has validated it; only leading zeros make it longer than 20 digits.
                self._body_left = int(value.strip()[-20:])
            elif size == 17 and name.lower() == b"transfer-encoding":
                codings += [coding.strip().lower() for coding in value.split(b",")]
            elif size == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
        version = self.parser.get_http_version()
        self._is_1_0 = version == "1.0"
        _check_head(version, hosts, codings)
        if codings:
            self._chunked, self._chunked_end = True, ChunkedEnd()

    def _begin_exchange(self, method: bytes, target: bytes) -> None:
        self._exchange = self._watch.begin("http", self.address, method, target)
        self._exchange.received_bytes = self._body_left

    def _end_exchange(self, exchange: Exchange) -> None:
        self._exchange = None
        self.app = self.config.loaded_app
        exchange.received_bytes -= self._body_left  # a part that never came
        exchange.end()

    @property
    def address(self) -> str:
        """``host:port`` of the client, empty if it is unknown."""
        return "" if self.client is None else f"{self.client[0]}:{self.client[1]}"

    def _deny(self, status: int, message: str, fields: bytes = b"") -> None:
        """Answer a request by its head alone, and end the connection: nobody reads its body."""
        self._claimed = self._message_done = self._closing = True
        self._keep_alive = False
        self._write_error(status, message, fields)
        if self._exchange is not None:
            self._end_exchange(self._exchange)
        LingeringProtocol(self, self.transport)

    def on_body(self, body: bytes) -> None:
        """Handle a piece of a body that goes through the parser."""
        if self._chunked and self._exchange is not None:
            self._exchange.received_bytes += len(body)
        if not self._claimed:
            super().on_body(body)
        elif self._chunked and not self._message_done:
            self.claimed_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of the request."""
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
        if self._exchange is not None:
            self.app = watched(self.app, self._exchange)
        keeps_alive = self._is_1_0 and self._keep_alive
        if keeps_alive:
            self.app = _kept_alive(self.app)
        super().on_headers_complete()
        if keeps_alive:
            self.cycle.keep_alive = True
            self.app = self.config.loaded_app
        self._in_asgi = True

    def on_response_complete(self) -> None:
        """Handle the end of an ASGI response."""
        self.server_state.total_requests += 1
        self._answer_done = True
        if self._exchange is not None:
            self._end_exchange(self._exchange)
        self.flow.resume_reading()  # a body that the application did not read is discarded on arrival
        self._next_if_done()

    # Responses to claimed requests

    def _write_error(self, status: int, message: str, fields: bytes = b"") -> None:
        self._clock.answers.add(str(int(status)))
        body = encode_error(message)
        if self._exchange is not None:
            self._exchange.status, self._exchange.sent_bytes = status, len(body)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (status, _PHRASES.get(status, b"Error"), fields, self._own_fields(), len(body), body)
        )

    def _own_fields(self) -> bytes:
        """The fields of this answer's head that others lack, each with its line end."""
        if not self._keep_alive:
            return self._answer_fields + b"connection: close\r\n"
        return self._answer_fields + b"connection: keep-alive\r\n" if self._is_1_0 else self._answer_fields

    def answered(self) -> None:
        """Handle the end of a response, whose borrowed memory is released."""
        if self._write_paused and self._after_drain is None:
            # A client that does not read gets no further responses, only those already in the transport.
            self._after_drain = self.answered
            return
        if self._exchange is not None:
            self._end_exchange(self._exchange)
        self.server_state.total_requests += 1
        self._answer_done = True
        self._next_if_done()

    def _next_if_done(self) -> None:
        """Continue with the next request once this one is complete and answered."""
        if not (self._message_done and self._answer_done) or self._lost:
            return
        if not self._keep_alive or self._clock.closing:
            self._closing = True
            self.transport.close()
            return
        self._active_at = self._clock.seconds
        self._start_message()
        if self._kept:
            self._consume_kept()

    def _refuse_connection(self, status: int, message: str) -> None:
        """Send an error for invalid HTTP, and close the connection."""
        answered = self._answer_done or (self._in_asgi and self.cycle.response_started)
        self._keep_alive = False
        self._closing = True
        self.refused_connection(message)
        if not self.transport.is_closing():
            if not answered:  # the client would take a second response for that to its next request
                self._write_error(status, message)
            self.transport.close()

    # Connection events

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self._write_paused = True
        self._unsent_then = unsent_bytes(self.transport)
        self._buffered_bytes = max(0, self.transport.get_write_buffer_size() - self._kept_bytes)
        if self._buffered_bytes > MAX_KEPT_BYTES and not self._clock.kept.claim(
            self, self._kept_bytes + self._buffered_bytes
        ):
            self.loop.call_soon(self.make_room)  # deferred, because more may be written first
        super().pause_writing()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        self._write_paused = False
        self._active_at = self._clock.seconds
        self._count_taken()
        if self._buffered_bytes > MAX_KEPT_BYTES:
            self._clock.kept.claim(self, self._kept_bytes)
        self._buffered_bytes = 0
        super().resume_writing()
        self._drained()

    def _count_taken(self) -> None:
        unsent = unsent_bytes(self.transport)
        self._taken_bytes += max(0, self._unsent_then - unsent)
        self._unsent_then = unsent

    def _drained(self) -> None:
        after, self._after_drain = self._after_drain, None
        if after is not None:
            after()

    def keep(self, nbytes: int) -> None:
        """Set the amount buffered for the client, apart from written bytes.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached.
        """
        kept = self._clock.kept
        if not kept.claim(self, nbytes + self._buffered_bytes):
            raise kept.error(nbytes - self._kept_bytes)
        self._kept_bytes = nbytes

    def make_room(self) -> None:
        """Disconnect a slow client, because others need the memory."""
        log.info("Closing the connection of a slow client: others need the memory that is buffered for it.")
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""
        self._lost = True
        if self._exchange is not None:
            self._end_exchange(self._exchange)
        self._drained()  # nothing more is sent, so borrowed memory is released
        self._kept_bytes = self._buffered_bytes = 0
        self._clock.kept.claim(self, 0)
        super().connection_lost(exc)
        self._clock.ended.set()

    def shutdown(self) -> None:
        """Handle the server's stop: close now if idle, else after the response."""
        if self._headers_done:
            self._keep_alive = False
            if not self._claimed:
                super().shutdown()
        else:
            self._closing = True
            self.transport.close()

    def check_progress(self) -> None:
        """Called about once a second: close a connection whose transfer is too slow."""
        now = self._clock.seconds
        seconds, self._checked_at = now - self._checked_at, now
        received, self._received_then = self._received_bytes - self._received_then, self._received_bytes
        if self._write_paused:
            self._count_taken()
        taken, self._taken_bytes = self._taken_bytes, 0
        if self._write_paused:
            moved = taken
        elif not self._message_done and not self.flow.read_paused and (self._headers_done or self._head_bytes > 0):
            moved = received
        else:
            self.pace.rest()
            if now - self._active_at >= IDLE_SECONDS and not self._message_done:
                self.transport.close()
            return
        self.pace.advance(max(1, seconds), moved)
        if self.pace.has_stalled:
            log.info(
                "Closing a connection whose client sends or reads less than %d bytes a second.", LOWEST_RATE_BYTES_PER_S
            )
            self.transport.abort()
