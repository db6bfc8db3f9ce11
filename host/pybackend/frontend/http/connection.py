"""A connection of HTTP/1.1: bytes between a transport and exchanges, one request at a time.

Bytes that a client sends before it has its answer are kept, up to a limit; then reading pauses. A client that disconnects is
therefore noticed while its request runs, and requests never overtake each other on a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from pybackend.engine.admission import Admission
from pybackend.engine.answers import Answers
from pybackend.frontend.http.cors import Cors
from pybackend.frontend.http.errors import INTERNAL
from pybackend.frontend.http.exchange import Exchange
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.http.lingering import LingeringProtocol
from pybackend.frontend.http.request_reader import MalformedRequestError, RequestHead, RequestReader
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.pace import IDLE_SECONDS, LOWEST_RATE_BYTES_PER_S, Pace, unsent_bytes
from pybackend.frontend.slices import Slices, Turn
from pybackend.frontend.watch import Exchange as Record
from pybackend.frontend.watch import Watch
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer
from pybackend.protocol.documents.metadata import encode_error

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 64 * 1024
"""Bytes of further requests that are kept while one is being answered; beyond, reading pauses."""

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

_NOBODY = Exchange()


class State(IntEnum):
    """How far a connection is with a request."""

    IDLE = 0
    """No byte of a request has arrived."""
    HEAD = 1
    """A part of a head has arrived."""
    BODY = 2
    """The head is complete, and the body is arriving."""
    ANSWERING = 3
    """The request is complete."""
    DRAINING = 4
    """The request was answered early, and the rest of its body is dropped."""
    CLOSING = 5
    """Nothing more is read."""
    CLOSED = 6
    """The connection has ended."""


_ENDS = {State.CLOSING, State.CLOSED}

TRANSITIONS: dict[State, set[State]] = {
    State.IDLE: {State.HEAD, State.BODY, State.ANSWERING, *_ENDS},
    State.HEAD: {State.BODY, *_ENDS},
    State.BODY: {State.ANSWERING, State.DRAINING, *_ENDS},
    State.ANSWERING: {State.IDLE, *_ENDS},
    State.DRAINING: {State.IDLE, *_ENDS},
    State.CLOSING: {State.CLOSED},
    State.CLOSED: set(),
}
"""The states that may follow each state."""


class HttpPort:
    """The state that all connections of a port share.

    Attributes:
        kept: the account of memory held for clients.
        begin: makes the exchange for a request whose head is complete. The server of the port sets it.
        take: begins a request if these bytes start with a head that is remembered, and returns the bytes behind the head or, for
            a whole request, none; returns its argument itself if the head is not known. This attribute is None on ports that
            remember nothing.
        on_malformed: called with the answer to bytes that are not HTTP, and the client's address.
        watch: follows requests for the log.
        guard: refuses requests by their heads; None if all may pass.
        cors: the rule for web pages of other origins; None if there is none.
        answers: counts the answers by status.
        slices: the scheduler of long work.
        connections: those that are open.
        ended: set when one of them has ended.
        seconds: incremented once a second; reading it costs nothing, unlike a timer per connection.
        closing: True once the server stops: connections close after the current answer.
    """

    def __init__(
        self,
        kept: KeptBytes,
        *,
        watch: Watch | None = None,
        guard: HttpGuard | None = None,
        cors: Cors | None = None,
    ) -> None:
        self.kept = kept
        self.watch = Watch() if watch is None else watch
        self.guard = guard
        self.cors = cors
        self.answers = Answers("200")
        self.begin: Callable[[HttpConnection, RequestHead], Exchange]
        self.take: Callable[[HttpConnection, bytes], bytes] | None = None
        self.on_malformed: Callable[[str, str], None] = lambda _message, _address: None
        self.slices = Slices()
        self.connections: set[HttpConnection] = set()
        self.ended = asyncio.Event()
        self.seconds = 0
        self.closing = False


class HttpConnection(asyncio.Protocol):
    """A connection.

    Attributes:
        port: the state that all connections of the port share.
        state: how far the current request is.
        keep_alive: further requests may follow the current one.
        is_1_0: the client speaks HTTP/1.0: answers say that the connection is kept.
        answer_fields: fields for the current answer's head, each with its line end.
        record: of the current request, for the log and its trace; None if nobody wants it.
        pace: the client's transfer rate.
        received_bytes: all that has come from the client.
        held_bytes: memory that the client takes, apart from written bytes.
    """

    def __init__(self, port: HttpPort) -> None:
        self.port = port
        self.state = State.IDLE
        self.keep_alive = True
        self.is_1_0 = False
        self.answer_fields = b""
        self.record: Record | None = None
        self.pace = Pace()
        self._reader = RequestReader()
        self._exchange: Exchange = _NOBODY
        self._kept = bytearray()
        self._turn = Turn(asyncio.get_running_loop())
        self._read_paused = self._write_paused = False
        self._after_drain: Callable[[], None] | None = None
        self.held_bytes = self._unread_bytes = 0
        self._active_at = self._checked_at = port.seconds
        self.received_bytes = self._received_then = self._unsent_then = self._taken_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """A client has come."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        # With a low-water mark of 0, resume_writing means that the kernel has taken everything.
        transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)
        self.port.connections.add(self)

    def _enter(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a connection goes from {self.state.name} to {state.name}")
        self.state = state

    # Requests

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._active_at = self.port.seconds
        self.received_bytes += len(data)
        if self._kept:
            self._keep(data)
        else:
            self._read(data)

    def begin_known(self, exchange: Exchange, body_bytes: int) -> None:
        """Begin a request whose head the port remembers.

        Args:
            exchange: reads and answers it.
            body_bytes: size of the body that must pass through ``on_body``; 0 if the request is complete without that.
        """
        self._exchange = exchange
        if body_bytes:
            self._enter(State.BODY)
            self._reader.body_left = body_bytes
        else:
            self.state = State.ANSWERING  # from IDLE: not worth a look at the table

    def answer_by(self, exchange: Exchange) -> None:
        """The current request has arrived, and this object answers it."""
        self._exchange = exchange

    def _read(self, data: bytes) -> None:
        try:
            while data:
                state = self.state
                if state is State.IDLE:
                    take = self.port.take
                    rest = data if take is None else take(self, data)
                    data = self._read_head(rest) if rest is data else rest
                elif state is State.BODY or state is State.DRAINING:
                    data = self._read_body(data)
                elif state is State.HEAD:
                    data = self._read_head(data)
                else:
                    if state is State.ANSWERING:
                        self._keep(data)
                    return
                if data and self.state is State.IDLE and self._turn.is_over():  # requests that were refused at once
                    self._keep(data)
                    self.pause_reading()
                    self.port.slices.add(self._read_kept)
                    return
        except MalformedRequestError as error:
            self._refuse(error)
        except Exception:  # noqa: BLE001  whatever goes wrong, the client gets an answer
            self._fail()

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > MAX_KEPT_BYTES:
            self.pause_reading()

    def _read_kept(self) -> bool:
        """Go on with requests that have waited; False, because more of them wait again."""
        if not self.is_lost:
            data = bytes(self._kept)
            self._kept.clear()
            self.resume_reading()
            self._read(data)
        return False

    def _read_head(self, data: bytes) -> bytes:
        reader = self._reader
        rest = reader.read_head(data)
        if reader.head is not None:
            self._enter(State.BODY)
            self._begin(reader.head)
        elif reader.head_bytes and self.state is State.IDLE:
            self._enter(State.HEAD)
        return rest

    def _begin(self, head: RequestHead) -> None:
        """Decide who reads and answers a request."""
        port = self.port
        self.keep_alive, self.is_1_0 = head.keep_alive, head.version == "1.0"
        self.answer_fields = b"" if port.cors is None else port.cors.answer_fields(head.headers)
        if port.watch.on:
            self.begin_record(head.method, head.target, head.content_length)
        if port.guard is not None:
            refused = port.guard.refusal(head.method, head.target, head.headers, self.address)
            if refused is not None:
                self._deny(refused.status, refused.message, refused.fields)
                return
        self._exchange = port.begin(self, head)
        if self._reader.is_complete:
            self._complete()

    def begin_record(self, method: bytes, target: bytes, body_bytes: int) -> None:
        """Follow the current request for the log."""
        self.record = self.port.watch.begin("http", self.address, method, target)
        self.record.received_bytes = body_bytes

    def _read_body(self, data: bytes) -> bytes:
        reader = self._reader
        piece, rest = reader.read_body(data)
        if self.state is State.DRAINING:
            if reader.is_complete:
                self._next()
            return rest
        if piece:
            if self.record is not None and reader.is_chunked:
                self.record.received_bytes += len(piece)
            self._exchange.on_body(piece)
        if reader.is_complete:
            self._complete()
        else:
            self._receive_directly()
        return rest

    def _complete(self) -> None:
        if self.state is State.BODY:
            self._enter(State.ANSWERING)
            self._exchange.on_complete()
        elif self.state is State.DRAINING:
            self._next()

    def _receive_directly(self) -> None:
        """Let the kernel write the next bytes of the body to their place, if the exchange has one for them."""
        if self.state is State.BODY and not self._reader.is_chunked and self._exchange.room() is not None:
            self.transport.set_protocol(_BodyReceiver(self, self._exchange))

    def stored(self, count: int) -> None:
        """So many bytes of the body were written to their place."""
        self._active_at = self.port.seconds
        self.received_bytes += count
        self._reader.body_left -= count
        try:
            self._exchange.on_stored(count)
            if self._reader.is_complete or self._exchange.room() is None:
                self.transport.set_protocol(self)
            if self._reader.is_complete:
                self._complete()
        except Exception:  # noqa: BLE001
            self.transport.set_protocol(self)
            self._fail()

    def pause_reading(self) -> None:
        """Let the client wait."""
        if not self._read_paused and self.state is not State.CLOSED:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._read_paused and self.state is not State.CLOSED:
            self._read_paused = False
            self.transport.resume_reading()
            self._receive_directly()

    # Answers

    def write_error(self, status: int, message: str, fields: bytes = b"") -> None:
        """Write a whole answer that says what is wrong; ``fields`` are further ones of its head, each with its line end."""
        self.port.answers.add(str(int(status)))
        body = encode_error(message)
        if self.record is not None:
            self.record.status, self.record.sent_bytes = status, len(body)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (status, _PHRASES.get(status, b"Error"), fields, self.own_fields(), len(body), body)
        )

    def own_fields(self) -> bytes:
        """The fields of this answer's head that others lack, each with its line end."""
        if not self.keep_alive:
            return self.answer_fields + b"connection: close\r\n"
        return self.answer_fields + b"connection: keep-alive\r\n" if self.is_1_0 else self.answer_fields

    def write_views(self, pieces: Sequence[Buffer], then: Callable[[], None]) -> None:
        """Write views of memory, and call ``then`` once the kernel has taken the last byte, or the connection has ended.

        The transport keeps a view of the bytes that the socket does not take; memory released earlier would contain
        another client's data by the time it is sent. With a high-water mark of 0 the transport reports an empty buffer.
        """
        transport = self.transport
        transport.set_write_buffer_limits(high=0, low=0)
        transport.writelines(pieces)

        def written() -> None:
            if self.state is not State.CLOSED:
                transport.set_write_buffer_limits(high=MAX_KEPT_BYTES, low=0)
            then()

        if transport.get_write_buffer_size() == 0:
            written()
        else:
            self._after_drain = written

    def waits_for_reader(self, go_on: Callable[[], None]) -> bool:
        """True if the client reads too slowly; ``go_on`` is then called when it has caught up or disconnected."""
        if self._write_paused:
            self._after_drain = go_on
        return self._write_paused

    def answered(self) -> None:
        """The answer is written, and the memory that it borrowed is released."""
        if self._write_paused and self._after_drain is None:
            # A client that does not read gets no further answers, only those already in the transport.
            self._after_drain = self.answered
            return
        if self.record is not None:
            self._end_record()
        if self.state is State.ANSWERING:
            self._next()
        elif self.state is State.BODY:
            self._exchange = _NOBODY
            if self.keep_alive:
                self._enter(State.DRAINING)
                self.resume_reading()
            else:
                self._linger()

    def _next(self) -> None:
        """Go on with the next request."""
        port = self.port
        if not self.keep_alive or port.closing:
            self._enter(State.CLOSING)
            self.transport.close()
            return
        self.state = State.IDLE
        self._exchange = _NOBODY
        self.answer_fields, self.is_1_0 = b"", False
        if self._reader.head_bytes:
            self._reader.begin()
        self._active_at = port.seconds
        if self._kept:
            self._read_kept()
        elif self._read_paused:
            self.resume_reading()

    def _end_record(self) -> None:
        record, self.record = self.record, None
        assert record is not None
        record.received_bytes -= self._reader.body_left  # a part that never came
        record.end()

    def _deny(self, status: int, message: str, fields: bytes = b"") -> None:
        """Answer a request whose body nobody reads, and end the connection."""
        self.keep_alive = False
        self.write_error(status, message, fields)
        if self.record is not None:
            self._end_record()
        self._linger()

    def _linger(self) -> None:
        self._enter(State.CLOSING)
        LingeringProtocol(self, self.transport)

    def _refuse(self, error: MalformedRequestError) -> None:
        """Answer bytes that are not HTTP, and end the connection."""
        has_begun = self._exchange.has_begun or self.state is State.DRAINING
        self._exchange.on_lost()
        self.keep_alive = False
        self._enter(State.CLOSING)
        self.port.on_malformed(error.message, self.address)
        if not self.transport.is_closing():
            if not has_begun:  # the client would take a second answer for that to its next request
                self.write_error(error.status, error.message)
            self.transport.close()

    def _fail(self) -> None:
        """Answer a request at which the server has failed, and end the connection."""
        log.exception("A request could not be handled")  # noqa: LOG004  called in a handler
        has_begun = self._exchange.has_begun
        self._exchange.on_lost()
        if has_begun or self.state in {State.DRAINING, State.CLOSING, State.CLOSED}:
            self.transport.abort()
        else:
            self._deny(500, INTERNAL)

    # The client's speed, and its share of the memory

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self._write_paused = True
        self._unsent_then = unsent_bytes(self.transport)
        self._unread_bytes = max(0, self.transport.get_write_buffer_size() - self.held_bytes)
        if self._unread_bytes > MAX_KEPT_BYTES and not self.port.kept.claim(self, self.held_bytes + self._unread_bytes):
            asyncio.get_running_loop().call_soon(self.make_room)  # deferred, because more may be written first
        self._exchange.on_paused()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        self._write_paused = False
        self._active_at = self.port.seconds
        self._count_taken()
        if self._unread_bytes > MAX_KEPT_BYTES:
            self.port.kept.claim(self, self.held_bytes)
        self._unread_bytes = 0
        self._exchange.on_resumed()
        self._drained()

    def _count_taken(self) -> None:
        unsent = unsent_bytes(self.transport)
        self._taken_bytes += max(0, self._unsent_then - unsent)
        self._unsent_then = unsent

    def _drained(self) -> None:
        after, self._after_drain = self._after_drain, None
        if after is not None:
            after()

    def hold(self, nbytes: int) -> None:
        """Set the memory that the client takes, apart from written bytes.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached.
        """
        if nbytes == self.held_bytes:
            return
        kept = self.port.kept
        if not kept.claim(self, nbytes + self._unread_bytes):
            raise kept.error(nbytes - self.held_bytes)
        self.held_bytes = nbytes

    @property
    def unread(self) -> Sequence[InferenceResponse]:
        """Responses that must stay in memory until the client has read them."""
        return self._exchange.unread

    def holds_memory_for(self, other: Admission | None) -> bool:
        """True while an arriving body holds leased memory that the other request could use."""
        return other is not None and self.state is State.BODY and self._exchange.holds_memory_for(other)

    def make_room(self) -> None:
        """Disconnect a slow client, because others need the memory."""
        log.info("Closing the connection of a slow client: others need the memory that is buffered for it.")
        self._exchange.on_lost()
        if self.state not in _ENDS:
            self._enter(State.CLOSING)
        self.transport.abort()

    def check_progress(self) -> None:
        """Called about once a second: close a connection whose transfer is too slow."""
        now = self.port.seconds
        seconds, self._checked_at = now - self._checked_at, now
        received, self._received_then = self.received_bytes - self._received_then, self.received_bytes
        if self._write_paused:
            self._count_taken()
        taken, self._taken_bytes = self._taken_bytes, 0
        if self._write_paused:
            moved = taken
        elif self.state in {State.HEAD, State.BODY, State.DRAINING} and not self._read_paused:
            moved = received
        else:
            self.pace.rest()
            if self.state is State.IDLE and now - self._active_at >= IDLE_SECONDS:
                self.transport.close()
            return
        self.pace.advance(max(1, seconds), moved)
        if self.pace.has_stalled:
            log.info(
                "Closing a connection whose client sends or reads less than %d bytes a second.", LOWEST_RATE_BYTES_PER_S
            )
            self.transport.abort()

    # The end

    @property
    def is_lost(self) -> bool:
        """The client or the server has closed the connection, or is about to."""
        return self.state is State.CLOSING or self.state is State.CLOSED

    def shut_down(self) -> None:
        """The server stops: close now if no request has come, else after the answer."""
        if self.state is State.IDLE or self.state is State.HEAD:
            self._enter(State.CLOSING)
            self.transport.close()
        else:
            self.keep_alive = False
            self._exchange.shut_down()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""
        if self.record is not None:
            self._end_record()
        self.state = State.CLOSED
        self._drained()  # nothing more is sent, so borrowed memory is released
        self._exchange.on_lost()
        self._exchange = _NOBODY
        self._reader.close()
        self.held_bytes = self._unread_bytes = 0
        self.port.kept.claim(self, 0)
        self.port.connections.discard(self)
        self.port.ended.set()


class _BodyReceiver(asyncio.BufferedProtocol):
    """Replaces the connection's protocol while the kernel writes the bytes of large tensors directly to their memory."""

    def __init__(self, owner: HttpConnection, exchange: Exchange) -> None:
        self._owner = owner
        self._room = exchange.room

    def get_buffer(self, sizehint: int) -> Any:
        return self._room()

    def buffer_updated(self, nbytes: int) -> None:
        self._owner.stored(nbytes)

    def eof_received(self) -> None:
        self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)
