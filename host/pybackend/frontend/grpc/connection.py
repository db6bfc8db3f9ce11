"""One gRPC connection: HTTP/2 between a transport and calls."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from pybackend.engine.admission import Admission
from pybackend.frontend.flow import STALLED_SECONDS, UNCOUNTED_BYTES, Flow, Transfer, unsent_bytes
from pybackend.frontend.grpc.call import Call, InboundMessages
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.grpc.keepalive import Advice, Age, Keepalive, Stage
from pybackend.frontend.grpc.method_table import MethodTable
from pybackend.frontend.http2 import ErrorCode, RemoteProtocolError, RequestHead, ServerConnection, Stream
from pybackend.frontend.listener import is_secure
from pybackend.frontend.slices import Slices, TurnShare
from pybackend.frontend.substitute import DirectReceiver
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc.status import GrpcStatus

log = logging.getLogger(__name__)

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


class GrpcConnection(asyncio.Protocol):
    """A connection.

    Args:
        frontend: state shared by all connections.
        methods: begins calls.
        loop: the event loop.

    Attributes:
        address: the client's, for logs.
        is_secure: the connection has TLS.
        http2: the protocol's state.
        flow: the client's bytes: their rate, and their memory.
        turn_share: its share in this turn of the event loop.
        slices: its work for later turns.
        arriving_count: calls of which a large message is arriving.
    """

    def __init__(self, frontend: GrpcFrontend, methods: MethodTable, loop: asyncio.AbstractEventLoop) -> None:
        self.frontend = frontend
        self._methods = methods
        self.loop = loop
        self.address = ""
        self.is_secure = False
        self.flow = Flow(self, frontend.client_memory)
        self.http2 = ServerConnection(self, frontend.config)
        self.turn_share = TurnShare(loop)
        self.slices = Slices(frontend.slices)
        self._flush_scheduled = False
        self._write_paused = self._lost = False
        self._when_written: list[InferenceResponse] = []
        self.arriving_count = 0
        self._active_at = self._looked_at = frontend.seconds
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
        self.flow.received_bytes += len(data)
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
                if self.turn_share.is_used_up():
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
            receiver = DirectReceiver(self, self.transport, lambda: self.next_room(1), self._received_directly)
            self.transport.set_protocol(receiver)
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
        room = call.messages.room if isinstance(call, Call) and call.messages is not None else None
        return None if room is None or len(room) < least_bytes else room[: expected[1]]

    def _received_directly(self, count: int) -> None:
        """Handle bytes that the receiver has written to a tensor's memory."""
        expected = self.http2.expected_payload
        assert expected is not None
        call = expected[0].receiver
        assert isinstance(call, Call)
        assert call.messages is not None
        self.flow.received_bytes += count
        self._active_at = self.frontend.seconds
        call.messages.stored(count)
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
        if self._write_paused or http2.waiting_bytes or self.flow.unread_bytes:
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
        self._rest = b""
        self.frontend.connections.discard(self)
        self.flow.close()
        self.frontend.ended.set()

    # Requests

    def on_request(self, stream: Stream, head: RequestHead, ended: bool) -> Call:
        """A call begins."""
        call_head = head.user_data
        if call_head is None:
            call_head = head.user_data = CallHead(head, self.frontend.policy)
        elif call_head.takes_shortcut:  # type: ignore[attr-defined]
            head.takes_whole = head.content_length is None
        call = self._methods.begin(self, stream, call_head)  # type: ignore[arg-type]
        if ended:
            call.on_trailers(())
        return call

    def on_whole_request(self, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int) -> Call | None:
        """A whole call with a known head has arrived."""
        return self._methods.begin_known(self, stream, head, data, start, stop)

    # Memory for slow clients

    def count_held(self, difference: int) -> None:
        """Change the number of bytes that calls hold: of messages that are incomplete, or must wait.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached. Then nothing changes; fewer bytes never raise.
        """
        self.flow.hold(self.flow.held_bytes + difference)

    def _count_unread(self) -> None:
        """Count the bytes that the client has not read, in the transport and before it, and those that wait to be handled."""
        unread = self.http2.waiting_bytes + len(self._rest)
        if self._write_paused and not self.transport.is_closing():
            unread += self.transport.get_write_buffer_size()
        self.flow.leave_unread(unread)

    @property
    def unread(self) -> Iterable[InferenceResponse]:
        """Responses that must stay in memory until the client has read them."""
        return chain(self._when_written, *(call.answer.unreleased for call in self.calls() if call.answer is not None))

    @property
    def arriving(self) -> Iterable[Admission]:
        """The admissions of requests whose tensors are arriving in models' memory."""
        return () if self.transport.is_closing() else chain(*(messages.arriving for messages in self._inbound()))

    def drop(self) -> None:
        """Disconnect a client that is too slow."""
        for messages in self._inbound():
            messages.give_up_arriving()
        self.transport.abort()

    # Once a second

    def check_progress(self, seconds: int) -> None:
        """Called about once a second: close a connection whose transfer is too slow, and reset calls whose client does not read."""
        now = self.frontend.seconds
        self.http2.time_passed(seconds)
        if now >= self._age.old_at:
            self._check_age(now)
        transfer = self._current_transfer()
        sent = self.http2.sent_bytes
        self.flow.measure(seconds, transfer, sent if transfer is None else sent - unsent_bytes(self.transport))
        if now - self._looked_at >= STALLED_SECONDS:
            self._looked_at = now
            self._end_stalled_calls()
        if transfer is None:
            self._check_idle(now)

    def _current_transfer(self) -> Transfer | None:
        """The client's task that the connection waits for; of two, the one for which more memory is held."""
        http2, held = self.http2, self.flow.held_bytes
        if self._write_paused:
            return Transfer.READ
        if self._rest:  # the client waits for the server
            return None
        unread = http2.waiting_bytes
        if unread > max(held, UNCOUNTED_BYTES) and not self.arriving_count:
            return Transfer.OPEN_WINDOW
        if http2.is_amid_frame or (
            (held or self.arriving_count) and any(messages.is_incomplete for messages in self._inbound())
        ):
            return Transfer.SEND
        return Transfer.OPEN_WINDOW if unread else None

    def calls(self) -> list[Call]:
        """The calls that have not ended."""
        return [stream.receiver for stream in self.http2.streams.values() if isinstance(stream.receiver, Call)]

    def _inbound(self) -> list[InboundMessages]:
        """The messages that are arriving."""
        return [call.messages for call in self.calls() if call.messages is not None]

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
