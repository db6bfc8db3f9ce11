"""A connection of HTTP/1.1: bytes between a transport and exchanges, one request at a time.

Bytes that a client sends before it has its answer wait, up to a limit; then reading pauses. A client that disconnects
is therefore noticed while its request runs, and requests never overtake each other on a connection.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any

from pybackend.engine.admission import ClientAdmission
from pybackend.frontend.flow import IDLE_SECONDS, ClientBytes, ClientMemory, Transfer
from pybackend.frontend.http.answer_writer import INTERNAL, AnsweringPort, AnswerWriter
from pybackend.frontend.http.api import Apis
from pybackend.frontend.http.guard import Cors, HttpGuard
from pybackend.frontend.http.request_reader import MalformedRequestError, RequestHead, RequestReader
from pybackend.frontend.request_log import RequestLog, RequestRecord
from pybackend.frontend.slices import TurnShare
from pybackend.frontend.substitute import DirectReceiver, LingeringProtocol
from pybackend.inference.response import InferenceResponse

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 64 * 1024
"""Bytes of further requests that wait while one is being answered; beyond, reading pauses."""


_FULL_BODY = b'{"error":"the server has as many connections as it can take: close some, or try again later"}'
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
"""The answer to a client for which there is no descriptor."""


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


# Looked up once: an enumeration's members are found by a function.
_IDLE, _BODY, _ANSWERING, _DRAINING = State.IDLE, State.BODY, State.ANSWERING, State.DRAINING

_ENDS = {State.CLOSING, State.CLOSED}
_ARRIVING = {State.HEAD, State.BODY, State.DRAINING}

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


class Input:
    """Bytes from one client that must wait, and whether it may send more."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._is_closed = False
        self.waiting = bytearray()
        self.is_paused = False

    def wait(self, data: bytes) -> None:
        self.waiting += data
        if len(self.waiting) > MAX_WAITING_BYTES:
            self.pause()

    def take(self) -> bytes:
        """The bytes that have waited; more may come."""
        data = bytes(self.waiting)
        self.waiting.clear()
        self.resume()
        return data

    def pause(self) -> None:
        """Let the client wait."""
        if not self.is_paused and not self._is_closed:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and not self._is_closed:
            self.is_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """The connection has ended: its transport is left alone."""
        self._is_closed = True


class Exchange:
    """A request and its answer, as its connection sees them.

    The methods do nothing; subclasses replace those that they need.
    """

    __slots__ = ()

    has_begun = False
    """A part of the answer is written."""

    @property
    def is_owed(self) -> bool:
        """Whether a model has the request, and no part of the answer is written."""
        return False

    unread: Sequence[InferenceResponse] = ()
    """Responses that must stay in memory until the client has read them. Released ones among them have no outputs."""

    arriving: Sequence[ClientAdmission] = ()
    """The admission of a request whose tensors arrive in a model's memory."""

    def on_body(self, piece: bytes) -> None:
        """The next bytes of the body, without the framing of chunks."""

    def on_complete(self) -> None:
        """The request has arrived; ``HttpConnection.answered`` must follow, now or later."""

    def gives_up(self, left_bytes: int) -> bool:
        """The request is refused, and so many bytes of its body, or those that came meanwhile, are too many to wait for."""
        return False

    def room(self) -> memoryview | None:
        """Memory for the next bytes of the body, if the kernel should write them there; None if not."""
        return None

    def on_stored(self, count: int) -> None:
        """So many bytes were written to :meth:`room`."""

    def on_paused(self) -> None:
        """The client reads more slowly than the server writes."""

    def on_resumed(self) -> None:
        """The client has taken everything that was written."""

    def on_lost(self) -> None:
        """The connection has ended, or is about to end: release everything. May be called twice."""


_NOBODY = Exchange()


class HttpPort(AnsweringPort["HttpConnection"]):
    """The port, as its connections see it."""

    def __init__(
        self,
        client_memory: ClientMemory,
        request_log: RequestLog | None,
        guard: HttpGuard | None,
        cors: Cors | None,
        apis: Apis,
    ) -> None:
        super().__init__(apis)
        self.client_memory = client_memory
        self.request_log = RequestLog() if request_log is None else request_log
        self.guard = guard  # refuses requests by their heads; None if all may pass
        self.cors = cors  # the rule for web pages of other origins; None if no page calls
        # begins a request if these bytes start with a head that is remembered, and returns the bytes behind the head
        # or, for a whole request, none; returns its argument itself if the head is not known. None on ports that
        # remember nothing.
        self.take: Callable[[HttpConnection, bytes], bytes] | None = None

    def begin(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        """Makes the exchange for a request whose head is complete."""
        raise NotImplementedError

    def malformed(self, message: str, address: str) -> None:
        """Called with the answer to bytes that are not HTTP, and the client's address."""


class HttpConnection(asyncio.Protocol):
    """A connection.

    Attributes:
        port: the state that all connections of the port share.
        state: how far the current request is.
        exchange: reads or answers the current request.
        record: of the current request, for the log and its trace; None if nobody wants it.
        flow: the client's bytes: their rate, and their memory.
        input: bytes that must wait.
        writer: writes the answers.
    """

    def __init__(self, port: HttpPort) -> None:
        self.port = port
        self.state = State.IDLE
        self.exchange: Exchange = _NOBODY
        self.record: RequestRecord | None = None
        self.flow = ClientBytes(self, port.client_memory)
        self._reader = RequestReader()
        self._turn_share = TurnShare(asyncio.get_running_loop())
        self._active_at = port.seconds

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.input = Input(transport)
        self.writer = AnswerWriter(transport, self.flow, self.port)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        self.port.connections.add(self)

    def _enter(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a connection goes from {self.state.name} to {state.name}")
        self.state = state

    # Requests

    def data_received(self, data: bytes) -> None:
        self._active_at = self.port.seconds
        self.flow.received_bytes += len(data)
        if self.input.waiting:
            self.input.wait(data)
        else:
            self._read(data)

    def begin_known(self, exchange: Exchange, body_bytes: int) -> None:
        """Begin a request whose head the port remembers.

        ``body_bytes`` must pass through ``on_body``; 0 if the request is complete without that.
        """
        self.exchange = exchange
        if body_bytes:
            self._enter(State.BODY)
            self._reader.body_left = body_bytes
        else:
            self.state = _ANSWERING  # from IDLE: not worth a look at the table

    def _read(self, data: bytes) -> None:
        try:
            while data:
                state = self.state
                if state is _IDLE:
                    take = self.port.take
                    rest = data if take is None else take(self, data)
                    data = self._read_head(rest) if rest is data else rest
                elif state is _BODY or state is _DRAINING:
                    data = self._read_body(data)
                elif state is State.HEAD:
                    data = self._read_head(data)
                else:
                    if state is _ANSWERING:
                        self.input.wait(data)
                    return
                if data and self.state is _IDLE and self._turn_share.is_used_up():  # of requests refused at once
                    self.input.wait(data)
                    self.input.pause()
                    self.port.slices.add(self._read_waiting)
                    return
        except MalformedRequestError as error:
            self._refuse(error)
        except Exception:  # noqa: BLE001  whatever goes wrong, the client gets an answer
            self._fail()

    def _read_waiting(self) -> bool:
        """Go on with requests that have waited; False, because more of them wait again."""
        if self.state < State.CLOSING:
            self._read(self.input.take())
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
        port, writer = self.port, self.writer
        writer.keep_alive, writer.is_1_0 = head.keep_alive, head.version == "1.0"
        fields = b"" if port.cors is None or head.origin is None else port.cors.answer_fields(head.origin, head.host)
        writer.cors_fields = fields
        if port.request_log.on:
            self.record = port.request_log.begin("http", self.address, head.method, head.target, head.content_length)
        if port.guard is not None:
            refused = port.guard.refusal(head.method, head.target, head.headers, self.address)
            if refused is not None:
                self._deny(*refused, head.target)
                return
        self.exchange = port.begin(self, head)
        if self._reader.is_complete:
            self._complete()
        elif self.exchange.gives_up(sys.maxsize if head.expects_continue else self._reader.body_left):
            self._end_early()

    def _read_body(self, data: bytes) -> bytes:
        reader = self._reader
        piece, rest = reader.read_body(data)
        if piece and self.state is State.BODY:
            if self.record is not None and reader.is_chunked:
                self.record.received_bytes += len(piece)
            self.exchange.on_body(piece)
        if reader.is_complete:
            self._complete()
        elif self.state is State.BODY and self.exchange.gives_up(reader.body_left):
            self._end_early()
        elif self.state is State.BODY and not reader.is_chunked and self.exchange.room() is not None:
            receiver = DirectReceiver(self, self.transport, self.exchange.room, self._stored)
            self.transport.set_protocol(receiver)
        return rest

    def _stored(self, count: int) -> None:
        """So many bytes of the body were written to their place."""
        self._active_at = self.port.seconds
        self.flow.received_bytes += count
        self._reader.body_left -= count
        try:
            self.exchange.on_stored(count)
            if self._reader.is_complete:
                self._complete()
            elif self.exchange.gives_up(self._reader.body_left):
                self._end_early()
        except Exception:  # noqa: BLE001  whatever goes wrong, the client gets an answer
            self._fail()

    def _end_early(self) -> None:
        """Answer a refused request now, and end the connection: nobody knows whether the rest of the body will come."""
        self.writer.keep_alive = False
        self.exchange.on_complete()

    def _complete(self) -> None:
        """The request has arrived, perhaps after its answer."""
        if self.state is State.BODY:
            self._enter(State.ANSWERING)
            self.exchange.on_complete()
        elif self.state is State.DRAINING:
            self._next()

    def answered(self) -> None:
        """The answer is written, and the memory that it borrowed is released."""
        # A client that does not read gets no further answers, only those already in the transport.
        if self.writer.is_paused and self.writer.waits_for_reader(self.answered):
            return
        if self.record is not None:
            self._end_record()
        if self.state is _ANSWERING:
            self._next()
        elif self.state is _BODY:
            self.exchange = _NOBODY
            if self.writer.keep_alive:
                self._enter(State.DRAINING)
                self.input.resume()
            else:
                self._enter(State.CLOSING)
                LingeringProtocol(self, self.transport)

    def _next(self) -> None:
        port, writer = self.port, self.writer
        if not writer.keep_alive or port.refusing:
            self._enter(State.CLOSING)
            self.transport.close()
            return
        self.state = _IDLE
        self.exchange = _NOBODY
        writer.cors_fields, writer.is_1_0 = b"", False
        if self._reader.head_bytes:
            self._reader.begin()
        self._active_at = port.seconds
        if self.input.waiting:
            self._read_waiting()
        elif self.input.is_paused:
            self.input.resume()

    # Requests that nobody else answers

    def _deny(self, status: int, message: str, fields: bytes = b"", target: bytes = b"") -> None:
        """Answer a request whose body nobody reads, and end the connection."""
        self.writer.keep_alive = False
        self.writer.write_error(self.record, status, message, fields, target)
        if self.record is not None:
            self._end_record()
        self._enter(State.CLOSING)
        LingeringProtocol(self, self.transport)

    def _refuse(self, error: MalformedRequestError) -> None:
        """Answer bytes that are not HTTP, and end the connection."""
        has_begun = self.exchange.has_begun or self.state is State.DRAINING
        self.exchange.on_lost()
        self.writer.keep_alive = False
        self._enter(State.CLOSING)
        self.port.malformed(error.message, self.address)
        if not self.transport.is_closing():
            if not has_begun:  # the client would take a second answer for that to its next request
                self.writer.write_error(self.record, error.status, error.message)
            self.transport.close()

    def _fail(self) -> None:
        """Answer a request at which the server has failed, and end the connection."""
        log.exception("A request could not be handled")  # noqa: LOG004  called in a handler
        has_begun = self.exchange.has_begun
        self.exchange.on_lost()
        if has_begun or self.state >= State.DRAINING:
            self.transport.abort()
        else:
            self._deny(500, INTERNAL)

    def _end_record(self) -> None:
        record, self.record = self.record, None
        assert record is not None
        record.received_bytes -= self._reader.body_left  # a part that never came
        record.end()

    # The client's speed, and its share of the memory

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self.writer.pause()
        self.exchange.on_paused()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        self._active_at = self.port.seconds
        self.exchange.on_resumed()
        self.writer.resume()

    @property
    def unread(self) -> Iterable[InferenceResponse]:
        """Responses that must stay in memory until the client has read them."""
        return self.exchange.unread

    @property
    def arriving(self) -> Iterable[ClientAdmission]:
        """The admission of a request whose tensors are arriving in a model's memory."""
        return self.exchange.arriving if self.state is State.BODY else ()

    def drop(self) -> None:
        """Disconnect a client that is too slow."""
        self.exchange.on_lost()
        if self.state < State.CLOSING:
            self._enter(State.CLOSING)
        self.transport.abort()

    def check_progress(self, seconds: int) -> None:
        """Called about once a second: close a connection whose transfer is too slow, or that is not used."""
        state, transfer = self.state, None
        if self.writer.is_paused:
            transfer = Transfer.READ
        elif state in _ARRIVING and not self.input.is_paused:
            transfer = Transfer.SEND
        self.flow.measure(seconds, transfer, self.writer.taken_bytes())
        if transfer is None and state is State.IDLE and self.port.seconds - self._active_at >= IDLE_SECONDS:
            self.transport.close()

    # The end

    @property
    def may_ask(self) -> bool:
        """Whether something may still come that a model must answer.

        An answer that a model owes will say that it is the last.
        """
        return self.state < State.CLOSING and not self.exchange.is_owed

    def shut_down(self) -> None:
        """Close now if no request has come, else after the answer."""
        if self.state is State.IDLE or self.state is State.HEAD:
            self._enter(State.CLOSING)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""
        if self.record is not None:
            self._end_record()
        self.state = State.CLOSED
        self.input.close()
        self.writer.resume()  # nothing more is sent, so borrowed memory is released
        self.exchange.on_lost()
        self.exchange = _NOBODY
        self._reader.close()
        self.flow.close()
        self.port.left(self)
