"""The connections of a gRPC port: HTTP/2 between a transport and calls."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

from pybackend.engine.admission import ClientAdmission
from pybackend.engine.door import Door
from pybackend.engine.engine import InferenceEngine
from pybackend.frontend.flow import ClientBytes
from pybackend.frontend.grpc.call import AnsweredCall, GrpcCall, open_calls, open_messages
from pybackend.frontend.grpc.call_factory import CallFactory
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.grpc.methods import EngineCallFactory
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.grpc.upkeep import Upkeep
from pybackend.frontend.substitute import DirectReceiver
from pybackend.frontend.tls import Secured
from pybackend.inference.response import InferenceResponse
from pybackend_http2 import (
    ConnectionReceiver,
    ErrorCode,
    RemoteProtocolError,
    RequestHead,
    ServerConnection,
    Stream,
    StreamReceiver,
)

log = logging.getLogger(__name__)

_DIRECT_BYTES = 64 * 1024
"""A smaller rest of a frame or tensor costs less to copy than to receive apart."""

_HTTP_1 = re.compile(rb"[A-Z]+ [^\r\n]* HTTP/1\.[01]\r?\n")
_BODY = b'{"error":"this port serves gRPC over HTTP/2: send HTTP/1.1 requests to the HTTP port"}'
_NOT_HTTP_2 = (
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_BODY), _BODY)
)


class GrpcConnection(ConnectionReceiver, asyncio.Protocol):
    """A connection."""

    def __init__(self, frontend: GrpcFrontend[Door], calls: CallFactory, loop: asyncio.AbstractEventLoop) -> None:
        self._frontend = frontend
        self._calls = calls
        self.http2 = ServerConnection(self, frontend.config)  # the protocol's state
        # the client, as its calls see it
        self.peer = Peer(frontend, self.http2, ClientBytes(self, frontend.client_memory), loop)
        self._upkeep = Upkeep(self.peer)
        self._rest, self._rest_begins = b"", 0

    # The transport

    def connection_made(self, transport: Any) -> None:
        """A client has come.

        It speaks first, so that a client of HTTP/1.1 reads nothing that it does not understand.
        """
        self.transport = transport
        self.peer.connected(transport)
        self._frontend.connections.add(self)
        if self._frontend.closing:
            self.leave()

    def data_received(self, data: bytes) -> None:
        peer, http2 = self.peer, self.http2
        peer.flow.received_bytes += len(data)
        peer.active_at = self._frontend.seconds
        if self._rest:
            self._rest += data
            peer.unhandled_bytes += len(data)
            return
        try:
            offset = http2.receive(data)
            if offset < len(data):
                self._receive_on(data, offset)
        except Exception as error:  # noqa: BLE001  the other connections go on
            self._failed(error, data)
        else:
            if peer.arriving_count:
                self._receive_directly()
            if http2.has_output or peer.is_leaving or peer.unwritten:
                peer.flush()
            if self._rest:
                self.transport.pause_reading()
                peer.slices.add(self._receive_rest)
                peer.count_unread()

    def _receive_on(self, data: bytes, offset: int) -> None:
        """Handle bytes from an offset on. When the turn of this connection is over, the rest waits."""
        while offset < len(data):
            if self.peer.turn_share.is_used_up():
                self._rest, self._rest_begins, self.peer.unhandled_bytes = data, offset, len(data)
                return
            offset = self.http2.receive(data, offset)

    def _failed(self, error: Exception, data: bytes) -> None:
        """End the connection: these bytes break a rule of HTTP/2, or the server has a fault."""
        peer = self.peer
        if not isinstance(error, RemoteProtocolError):
            log.error("A gRPC connection failed", exc_info=error)
            self.http2.close(ErrorCode.INTERNAL_ERROR)
            peer.flush()
            self.transport.close()
        elif not peer.has_written and _HTTP_1.match(data):
            self._frontend.malformed(str(error), peer.address)
            self.transport.write(_NOT_HTTP_2)
            self.transport.close()
        else:
            self._end_broken(error)

    def _receive_directly(self) -> None:
        """Let the kernel write the next bytes to a tensor's memory, if many belong there."""
        if self._next_room(_DIRECT_BYTES) is not None:
            receiver = DirectReceiver(self, self.transport, lambda: self._next_room(1), self._received_directly)
            self.transport.set_protocol(receiver)

    def _receive_rest(self) -> bool:
        """Handle the next part of the rest; True if there is more."""
        peer = self.peer
        if peer.is_lost or self.transport.is_closing():
            return False
        rest, self._rest, peer.unhandled_bytes = self._rest, b"", 0
        peer.active_at = self._frontend.seconds
        try:
            self._receive_on(rest, self.http2.receive(rest, self._rest_begins))
        except Exception as error:  # noqa: BLE001  the other connections go on
            self._failed(error, rest)
            return False
        if peer.arriving_count:
            self._receive_directly()
        peer.flush()
        if self._rest:
            return True
        peer.count_unread()
        if not peer.is_full and not self.transport.is_closing():
            self.transport.resume_reading()
        return False

    def _end_broken(self, error: RemoteProtocolError) -> None:
        """End the connection, because the client broke a rule of HTTP/2."""
        self._frontend.malformed(str(error), self.peer.address)
        self.peer.flush()
        self.transport.close()

    def _next_room(self, least_bytes: int) -> memoryview | None:
        """Memory for the next bytes of the client, if so many at least belong to a large tensor."""
        expected = self.http2.expected_payload
        if expected is None or expected[1] < least_bytes:
            return None
        call = expected[0].receiver
        room = call.messages.room if isinstance(call, GrpcCall) and call.messages is not None else None
        return None if room is None or len(room) < least_bytes else room[: expected[1]]

    def _received_directly(self, count: int) -> None:
        """Handle bytes that the receiver has written to a tensor's memory."""
        peer, http2 = self.peer, self.http2
        expected = http2.expected_payload
        assert expected is not None
        call = expected[0].receiver
        assert isinstance(call, GrpcCall)
        assert call.messages is not None
        peer.flow.received_bytes += count
        peer.active_at = self._frontend.seconds
        call.messages.stored(count)
        try:
            http2.payload_stored(count)
        except RemoteProtocolError as error:
            self._end_broken(error)
        else:
            peer.flush()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes: neither reads nor writes go on."""
        self.peer.is_full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        peer = self.peer
        peer.is_full = False
        peer.active_at = self._frontend.seconds
        peer.release_written()  # before more is written: a transport that never rests must not keep what it has sent
        if not self.transport.is_closing() and not self._rest:
            self.transport.resume_reading()
        peer.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side: all its calls end."""
        self.peer.is_lost = True
        self.http2.connection_lost()
        self.peer.release_written()
        self._rest = b""
        self.peer.flow.close()
        self._frontend.left(self)

    # Requests

    def on_request(self, stream: Stream, head: RequestHead, ended: bool) -> StreamReceiver:
        call_head = head.user_data
        if call_head is None:
            call_head = head.user_data = CallHead(head, self._frontend.policy)
        elif call_head.takes_shortcut:  # type: ignore[attr-defined]
            head.takes_whole = head.content_length is None
        call = self._calls.begin(self.peer, stream, call_head, head)  # type: ignore[arg-type]
        if ended:
            call.on_trailers(())
        return call

    def on_whole_request(
        self, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int
    ) -> StreamReceiver | None:
        """A whole call with a known head has arrived."""
        return self._calls.begin_known(self.peer, stream, head, data, start, stop)

    # The client of the flow

    @property
    def unread(self) -> Iterable[InferenceResponse]:
        """Responses that must stay in memory until the client has read them."""
        answers = [call.answer for call in open_calls(self.http2) if call.answer is not None]
        return chain(self.peer.unwritten, *(answer.unreleased for answer in answers))

    @property
    def arriving(self) -> Iterable[ClientAdmission]:
        """The admissions of requests whose tensors are arriving in models' memory."""
        return () if self.transport.is_closing() else chain(*(each.arriving for each in open_messages(self.http2)))

    def drop(self) -> None:
        """Disconnect a client that is too slow."""
        for messages in open_messages(self.http2):
            messages.give_up_arriving()
        self.transport.abort()

    # The server

    def check_progress(self, seconds: int) -> None:
        """Called about once a second."""
        self._upkeep.check(seconds)

    def leave(self) -> None:
        """Ask the client to begin no further calls; the connection closes after the last one."""
        self._upkeep.leave()

    @property
    def may_ask(self) -> bool:
        """Whether a call may still come, a message of one, or something for a model in what has arrived."""
        return self.http2.takes_requests or not all(map(_is_working, self.http2.streams.values()))

    def shut_down(self) -> None:
        """End the calls that wait for their clients; the connection closes after the last one."""
        self._upkeep.shut_down()


def _is_working(stream: Stream) -> bool:
    """Whether a call has all its messages, and they are being answered."""
    call = stream.receiver
    return isinstance(call, AnsweredCall) and not stream.receiving and call.is_working()


def connections(frontend: GrpcFrontend[Door], calls: CallFactory) -> Callable[[], GrpcConnection]:
    """A maker of the port's connections."""
    return partial(GrpcConnection, frontend, calls, asyncio.get_running_loop())


async def start_grpc(frontend: GrpcFrontend[InferenceEngine], sock: socket.socket, tls: Secured | None = None) -> None:
    """Accept connections on a bound socket; with ``tls``, secure ones only."""
    await frontend.listen(sock, connections(frontend, EngineCallFactory(frontend)), b"", tls)
