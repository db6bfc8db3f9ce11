"""One gRPC connection: HTTP/2 between a transport and calls."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import Any

from pybackend.engine.admission import Admission
from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.dispatch import MakeCall
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.fast_path import FastPath
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.grpc.keepalive import Advice, Age, Keepalive, Stage
from pybackend.frontend.grpc.refused_call import RefusedCall
from pybackend.frontend.http2 import ErrorCode, RemoteProtocolError, RequestHead, ServerConnection, Stream
from pybackend.frontend.listener import is_secure
from pybackend.frontend.pace import LOWEST_RATE_BYTES_PER_S, STALLED_SECONDS, Pace, unsent_bytes
from pybackend.frontend.slices import Slices, Turn
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.status import GrpcStatus

log = logging.getLogger(__name__)

_FREE_BYTES = 64 * 1024
"""Bytes of incomplete messages that every connection may have without being counted."""

_DIRECT_BYTES = 64 * 1024
"""A smaller rest of a frame or tensor costs less to copy than to receive apart."""

_KEEPALIVE = b"are you?"

_TOO_OLD = CallError(
    GrpcStatus.UNAVAILABLE,
    "the connection has reached its greatest age (--grpc-max-connection-age), and this call has outlasted the time after it",
)

_HTTP_1 = re.compile(rb"[A-Z]+ [^\r\n]* HTTP/1\.[01]\r?\n")
_BODY = b'{"error":"this port serves gRPC over HTTP/2: send HTTP/1.1 requests to the HTTP port"}'
_NOT_HTTP_2 = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_BODY), _BODY)
)


class _Transfer(Enum):
    """A reason to measure the client's pace."""

    ANSWER = "the client must read what the transport holds"
    MESSAGE = "the client must send the rest of a frame or message"
    WINDOW = "the client must open a window"


class GrpcConnection(asyncio.Protocol):
    """A connection.

    Args:
        frontend: state shared by all connections.
        make_call: makes the object that answers a call.
        fast: remembers recurring calls; None if nothing is remembered.
        loop: the event loop.

    Attributes:
        address: the client's, for logs.
        pace: the client's transfer rate.
        is_secure: the connection has TLS.
        http2: the protocol's state.
        turn: its share in this turn of the event loop.
        slices: its work for later turns.
        held_bytes: bytes of messages that are incomplete, or must wait.
        arriving_count: calls of which a large message is arriving.
    """

    def __init__(
        self, frontend: GrpcFrontend, make_call: MakeCall, fast: FastPath | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.frontend = frontend
        self._make_call = make_call
        self._fast = fast
        self.loop = loop
        self.address = ""
        self.is_secure = False
        self.pace = Pace()
        self.http2 = ServerConnection(self, frontend.config)
        self.turn = Turn(loop)
        self.slices = Slices(frontend.slices)
        self._flush_scheduled = False
        self._write_paused = self._lost = False
        self._when_written: list[InferenceResponse] = []
        self.held_bytes = self._unread_bytes = self._claimed_bytes = 0
        self.arriving_count = 0
        self._received_bytes = self._received_then = self._taken_then = 0
        self._checked_at = self._active_at = self._looked_at = frontend.seconds
        self._transfer: _Transfer | None = None
        self._rest, self._rest_begins = b"", 0
        self._shutting_down = self._greeted = False
        self._keepalive = Keepalive(frontend.settings.keepalive)
        self._age = Age(frontend.settings.keepalive, frontend.seconds)

    # The transport

    def connection_made(self, transport: Any) -> None:
        """A client has come; it speaks first, so that a client of HTTP/1.1 reads nothing that it does not understand."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local socket"
        self.is_secure = is_secure(transport)
        if not self.is_secure:
            # With marks of 0, a paused transport holds bytes and a resumed one holds none.
            transport.set_write_buffer_limits(high=0, low=0)
        self.frontend.connections.add(self)
        if self.frontend.closing:
            self.shut_down()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._received_bytes += len(data)
        if self._rest:
            self._rest += data
            return
        self._receive(data, 0)
        if self._rest:
            self.transport.pause_reading()
            self.slices.add(self._receive_rest)
            self._count_unread()

    def _receive(self, data: bytes, offset: int) -> None:
        """Handle bytes from an offset on. When the turn of this connection is over, the rest waits."""
        self._active_at = self.frontend.seconds
        self._rest = b""
        try:
            offset = self.http2.receive_some(data, offset)
            while offset < len(data):
                if self.turn.is_over():
                    self._rest, self._rest_begins = data, offset
                    break
                offset = self.http2.receive_some(data, offset)
        except RemoteProtocolError as error:
            if not self._greeted and _HTTP_1.match(data):
                self.frontend.malformed(str(error), self.address)
                self.transport.write(_NOT_HTTP_2)
                self.transport.close()
            else:
                self._end_broken(error)
            return
        except Exception:  # the other connections go on
            log.exception("A gRPC connection failed")
            self.http2.close(ErrorCode.INTERNAL_ERROR)
            self._flush()
            self.transport.close()
            return
        self._greeted = True
        if self.arriving_count and self.next_room(_DIRECT_BYTES) is not None:
            self.transport.set_protocol(_PayloadReceiver(self))
        self._flush_if_needed()

    def _receive_rest(self) -> bool:
        """Handle the next part of the rest; True if there is more."""
        if self._lost or self.transport.is_closing():
            return False
        self._receive(self._rest, self._rest_begins)
        if self._rest:
            return True
        self._count_unread()
        if not self._write_paused and not self.transport.is_closing():
            self.transport.resume_reading()
        return False

    def _end_broken(self, error: RemoteProtocolError) -> None:
        self.frontend.malformed(str(error), self.address)
        self._flush()
        self.transport.close()

    def next_room(self, least_bytes: int) -> memoryview | None:
        """Memory for the next bytes of the client, if so many at least belong to a large tensor."""
        expected = self.http2.expected_payload
        if expected is None or expected[1] < least_bytes:
            return None
        call = expected[0].receiver
        room = call.room if isinstance(call, Call) else None
        return None if room is None or len(room) < least_bytes else room[: expected[1]]

    def received_directly(self, count: int) -> None:
        """Handle bytes that the receiver has written to a tensor's memory."""
        expected = self.http2.expected_payload
        assert expected is not None
        call = expected[0].receiver
        assert isinstance(call, Call)
        self._received_bytes += count
        self._active_at = self.frontend.seconds
        call.stored(count)
        try:
            self.http2.payload_stored(count)
        except RemoteProtocolError as error:
            self._end_broken(error)
            return
        self._flush_if_needed()

    def _flush_if_needed(self) -> None:
        if self.http2.has_output or self._shutting_down or self._when_written:
            self._flush()

    def flush_soon(self) -> None:
        """Write at the end of this loop turn: answers of one turn leave together.

        Those of other connections leave right before and behind them. With work between two writes, a client of many connections
        would be woken by each of them, which costs a fifth more CPU time at 32 connections.
        """
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._lost:
            self._let_go()
            return
        http2 = self.http2
        self._greeted = True
        if self._shutting_down and not http2.streams:
            http2.finish_shutdown()
        while not self._write_paused and http2.has_output:
            pieces = http2.take_output()
            if len(pieces) == 1:
                self.transport.write(pieces[0])
            else:
                self.transport.writelines(pieces)
        if self._when_written and not self._write_paused:
            self._let_go()
        if self._write_paused or http2.waiting_bytes or self._unread_bytes:
            self._count_unread()
        if self._shutting_down and not self._write_paused and http2.is_finished:
            self.transport.close()

    def _let_go(self) -> None:
        written, self._when_written = self._when_written, []
        for response in written:
            response.release()

    def release_when_written(self, response: InferenceResponse) -> None:
        """Release a response once the transport holds no views of its memory."""
        self._when_written.append(response)
        self.flush_soon()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes: neither reads nor writes go on."""
        self._write_paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        self._write_paused = False
        self._active_at = self.frontend.seconds
        self._let_go()  # before more is written: a transport that never rests must not keep what it has sent
        if not self.transport.is_closing() and not self._rest:
            self.transport.resume_reading()
        self._flush()

    def eof_received(self) -> None:
        """The client sends no more: calls that it has sent cannot be answered either."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side: all its calls end."""
        self._lost = True
        self.http2.connection_lost()
        self._let_go()
        self.held_bytes = self._unread_bytes = self._claimed_bytes = 0
        self._rest = b""
        self.frontend.connections.discard(self)
        self.frontend.kept.claim(self, 0)
        self.frontend.senders.discard(self)
        self.frontend.ended.set()

    # Requests

    def on_request(self, stream: Stream, head: RequestHead, ended: bool) -> Call:
        """A call begins."""
        call_head = head.user_data
        if call_head is None:
            call_head = head.user_data = CallHead(head, self.frontend.policy)
        elif call_head.takes_shortcut:  # type: ignore[attr-defined]
            head.takes_whole = head.content_length is None
        call = (self._make_call if call_head.refusal is None else RefusedCall)(self, stream, call_head)  # type: ignore[arg-type,attr-defined]
        if ended:
            call.on_trailers(())
        return call

    def on_whole_request(self, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int) -> Call | None:
        """A whole call with a known head has arrived."""
        return None if self._fast is None else self._fast.take(self, stream, head, data, start, stop)

    def on_ping_acknowledged(self, payload: bytes) -> None:
        """The client is alive."""

    def on_goaway(self, code: int, debug: bytes) -> None:
        """The client is about to leave."""

    # Memory for slow clients

    def count_held(self, difference: int) -> None:
        """Change the number of bytes that calls hold: of messages that are incomplete, or must wait.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached. Then nothing changes; fewer bytes never raise.
        """
        self.held_bytes += difference
        if not self._claim() and difference > 0:
            self.held_bytes -= difference
            raise self.frontend.kept.error(difference)

    def _count_unread(self) -> None:
        """Count the bytes that the client has not read, in the transport and before it."""
        unread = self.http2.waiting_bytes
        if self._write_paused and not self.transport.is_closing():
            unread += self.transport.get_write_buffer_size()
        self._unread_bytes = unread
        if not self._claim():
            self.loop.call_soon(self.make_room)  # deferred, because calls are in the middle of their answers

    def _claim(self) -> bool:
        """Tell the account how much this connection holds; False if it is too much."""
        held = self.held_bytes + self._unread_bytes + len(self._rest)
        wanted = held if held > _FREE_BYTES else 0
        if wanted != self._claimed_bytes:
            if not self.frontend.kept.claim(self, wanted):
                return False
            self._claimed_bytes = wanted
        return True

    @property
    def unread(self) -> Iterable[InferenceResponse]:
        """Responses that must stay in memory until the client has read them."""
        return chain(self._when_written, *(call.unreleased for call in self.calls()))

    def make_room(self) -> None:
        """Disconnect a slow client, because others need the memory."""
        log.info("Closing the connection of a slow client: others need the memory that is buffered for it.")
        for call in self.calls():
            call.give_up_arriving()
        self.transport.abort()

    def holds_memory_for(self, other: Admission | None) -> bool:
        """True while an arriving request holds leased memory that the other request could use."""
        return not self.transport.is_closing() and any(call.holds_memory_for(other) for call in self.calls())

    # Once a second

    def check_progress(self) -> None:
        """Close a connection whose transfer is too slow, and reset calls whose client does not read."""
        now = self.frontend.seconds
        seconds, self._checked_at = max(1, now - self._checked_at), now
        self.http2.time_passed(seconds)
        if now >= self._age.old_at:
            self._check_age(now)
        received, self._received_then = self._received_bytes - self._received_then, self._received_bytes
        transfer = self._current_transfer()
        if transfer is None:
            self.pace.rest()
        elif self._transfer is None:  # one that follows another is no new beginning: clients choose when they alternate
            self._taken_then = self._taken_bytes()
        self._transfer = transfer
        if now - self._looked_at >= STALLED_SECONDS:
            self._looked_at = now
            self._end_stalled_calls()
        if transfer is None:
            self._check_idle(now)
            return
        taken = self._taken_bytes()
        read, self._taken_then = max(0, taken - self._taken_then), taken
        self.pace.advance(seconds, received if transfer is _Transfer.MESSAGE else read)
        # While windows are shut, only the calls that are not read end.
        if self.pace.has_stalled and transfer is not _Transfer.WINDOW:
            log.info(
                "Closing a connection whose client sends or reads less than %d bytes a second.", LOWEST_RATE_BYTES_PER_S
            )
            self.transport.abort()

    def _current_transfer(self) -> _Transfer | None:
        """The client's task that the connection waits for; of two, the one for which more memory is held."""
        http2 = self.http2
        if self._write_paused:
            return _Transfer.ANSWER
        if self._rest:  # the client waits for the server
            return None
        unread = http2.waiting_bytes
        if unread > max(self.held_bytes, _FREE_BYTES) and not self.arriving_count:
            return _Transfer.WINDOW
        if http2.is_amid_frame or (
            (self.held_bytes or self.arriving_count) and any(call.is_incomplete for call in self.calls())
        ):
            return _Transfer.MESSAGE
        return _Transfer.WINDOW if unread else None

    def calls(self) -> list[Call]:
        """The calls that have not ended."""
        return [stream.receiver for stream in self.http2.streams.values() if isinstance(stream.receiver, Call)]

    def _end_stalled_calls(self) -> None:
        for stream in self.http2.stalled_streams():
            log.info("Resetting a call whose client has read nothing of its answer for %d seconds.", STALLED_SECONDS)
            receiver = stream.receiver
            stream.reset(ErrorCode.CANCEL)
            receiver.on_reset(ErrorCode.CANCEL, None)
        for call in self.calls():
            call.check_progress()
        self._flush()

    def _check_idle(self, now: int) -> None:
        """Close a connection that is not used, and one whose client has gone without a word."""
        http2 = self.http2
        advice = self._keepalive.check(now, self._active_at, http2.answered_mark, has_calls=bool(http2.streams))
        if advice is Advice.CLOSE:
            self.shut_down()
        elif advice is Advice.PING:
            http2.ping(_KEEPALIVE)
            self._flush()
        elif advice is Advice.ABORT:
            log.info("Closing a connection whose client does not answer.")
            self.transport.abort()

    def _check_age(self, now: int) -> None:
        """Bring an old connection to its end."""
        stage = self._age.stage(now)
        if stage is Stage.ASK:
            self._shutting_down = True
            self.http2.begin_shutdown()
        elif stage is Stage.LAST:
            self.http2.finish_shutdown()
        elif stage is Stage.END:
            for call in self.calls():
                call.fail(_TOO_OLD)
        self._flush()
        if stage is Stage.END:
            self.transport.close()

    def _taken_bytes(self) -> int:
        """About as many bytes of answers as the client has taken so far."""
        return self.http2.sent_bytes - unsent_bytes(self.transport)

    # The end

    def shut_down(self) -> None:
        """Accept no further calls; the connection closes after the last one."""
        self._shutting_down = True
        self.http2.begin_shutdown()
        for call in self.calls():
            call.shut_down()
        self._flush()

    def forget_heads(self) -> None:
        """Read the heads of further calls again."""
        self.http2.forget_heads()

    def abort(self) -> None:
        """End now."""
        self.http2.close(ErrorCode.NO_ERROR)
        self.transport.abort()


class _PayloadReceiver(asyncio.BufferedProtocol):
    """Replaces the connection's protocol while the bytes of a large tensor arrive: the kernel writes them to their place."""

    def __init__(self, owner: GrpcConnection) -> None:
        self._owner = owner
        self._room: memoryview | None = None
        self._spare = memoryview(b"")

    def get_buffer(self, sizehint: int) -> Any:
        """The rest of the tensor or of its frame, or other memory if the call has ended meanwhile."""
        self._room = self._owner.next_room(1)
        if self._room is not None:
            return self._room
        self._spare = memoryview(bytearray(_DIRECT_BYTES))
        return self._spare

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        owner = self._owner
        if self._room is None:
            owner.transport.set_protocol(owner)
            owner.data_received(bytes(self._spare[:nbytes]))
            return
        self._room = None
        owner.received_directly(nbytes)
        if owner.next_room(1) is None:
            owner.transport.set_protocol(owner)

    def eof_received(self) -> None:
        """The client sends no more."""
        self._owner.eof_received()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed."""
        self._owner.connection_lost(exc)
