"""One gRPC connection: HTTP/2 between a transport and calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pybackend.frontend.grpc.call import Call, CallConnection
from pybackend.frontend.grpc.errors import http_error
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.listener import is_secure
from pybackend.frontend.pace import LOWEST_RATE_BYTES_PER_S, Pace, kernel_unsent_bytes
from pybackend.http2 import Config, ErrorCode, RemoteProtocolError, RequestHead, ServerConnection, Stream

log = logging.getLogger(__name__)

CONFIG = Config(max_frame_bytes=1024 * 1024, stream_window_bytes=4 * 1024 * 1024)
"""Large frames and windows, so that a large tensor is not a thousand frames."""

MakeCall = Callable[[CallConnection, Stream, CallHead], Call]

_FREE_BYTES = 64 * 1024
"""Bytes of incomplete messages that every connection may have without being counted."""

_NOT_A_CALL = http_error(415)
_WRONG_METHOD = http_error(405)


class GrpcConnection(asyncio.Protocol):
    """A connection.

    Args:
        frontend: state shared by all connections.
        make_call: makes the object that answers a call.
        loop: the event loop.

    Attributes:
        address: the client's, for logs.
        pace: the client's transfer rate.
        is_secure: the connection has TLS.
    """

    def __init__(self, frontend: GrpcFrontend, make_call: MakeCall, loop: asyncio.AbstractEventLoop) -> None:
        self.frontend = frontend
        self._make_call = make_call
        self.loop = loop
        self.address = ""
        self.is_secure = False
        self.pace = Pace()
        self._http2 = ServerConnection(self, CONFIG)
        self._flush_scheduled = False
        self._write_paused = self._lost = False
        self._when_written: list[Callable[[], None]] = []
        self._kept: dict[Call, int] = {}
        self._kept_bytes = self._claimed_bytes = 0
        self._received_bytes = self._received_then = self._unsent_then = 0
        self._checked_at = self._active_at = frontend.seconds

    # The transport

    def connection_made(self, transport: Any) -> None:
        """Offer the settings."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local socket"
        self.is_secure = is_secure(transport)
        if not self.is_secure:
            # With marks of 0, a paused transport holds bytes and a resumed one holds none.
            transport.set_write_buffer_limits(high=0, low=0)
        self.frontend.connections.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._received_bytes += len(data)
        self._active_at = self.frontend.seconds
        try:
            self._http2.receive(data)
        except RemoteProtocolError as error:
            self.frontend.malformed(str(error), self.address)
            self._flush()
            self.transport.close()
            return
        self._flush()

    def flush_soon(self) -> None:
        """Write at the end of this loop turn: answers of one turn leave together."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._lost:
            self._let_go()
            return
        http2 = self._http2
        while not self._write_paused and http2.has_output:
            self.transport.writelines(http2.take_output())
        if not self._write_paused:
            self._let_go()
        if http2.is_finished and not self._write_paused:
            self.transport.close()

    def _let_go(self) -> None:
        written, self._when_written = self._when_written, []
        for release in written:
            release()

    def when_written(self, release: Callable[[], None]) -> None:
        """Call this once the transport holds no views of memory that it has been given."""
        self._when_written.append(release)
        self.flush_soon()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes: neither reads nor writes go on."""
        self._write_paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The kernel has taken all data."""
        self._write_paused = False
        self._active_at = self.frontend.seconds
        self.pace.rest()
        if not self.transport.is_closing():
            self.transport.resume_reading()
        self._flush()

    def eof_received(self) -> None:
        """The client sends no more: calls that it has sent cannot be answered either."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side: all its calls end."""
        self._lost = True
        self._http2.connection_lost()
        self._let_go()
        self.frontend.connections.discard(self)
        self.frontend.kept.claim(self, 0)
        self.frontend.ended.set()

    # Requests

    def on_request(self, stream: Stream, head: RequestHead, ended: bool) -> Call:
        """A call begins."""
        call_head = head.memo
        if call_head is None:
            call_head = head.memo = CallHead(head)
        assert isinstance(call_head, CallHead)
        call = self._make_call(self, stream, call_head)
        content_type = call_head.metadata.get(b"content-type", b"")
        if head.method != b"POST" or not content_type.startswith(b"application/grpc"):
            call.refuse(_WRONG_METHOD if head.method != b"POST" else _NOT_A_CALL)
        elif call_head.refusal is not None:
            call.refuse(call_head.refusal)
        elif ended:
            call.on_trailers(())
        return call

    def on_ping_acknowledged(self, payload: bytes) -> None:
        """The client is alive."""

    def on_goaway(self, code: int, debug: bytes) -> None:
        """The client is about to leave."""

    # Memory of incomplete messages

    def keep(self, call: Call, held_bytes: int) -> int:
        """Count the bytes of an incomplete message.

        Returns:
            How many of them were not counted before.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached.
        """
        more = held_bytes - self._kept.get(call, 0)
        self._count(self._kept_bytes + more)
        self._kept[call] = held_bytes
        return more

    def unkeep(self, call: Call, message_bytes: int) -> int:
        """Stop counting a message; returns how many of its bytes have not been given back to the client."""
        kept = min(self._kept.get(call, 0), message_bytes)
        if kept:
            self._forget(call, kept)
        return message_bytes - kept

    def call_ended(self, call: Call, held_bytes: int) -> None:
        """Forget a call's bytes, and give the client back those that were not."""
        kept = self._kept.get(call, 0)
        if kept:
            self._forget(call, kept)
        if held_bytes > kept:
            call.stream.give_back(held_bytes - kept)

    def _forget(self, call: Call, nbytes: int) -> None:
        left = self._kept[call] - nbytes
        if left:
            self._kept[call] = left
        else:
            del self._kept[call]
        self._count(self._kept_bytes - nbytes)

    def _count(self, nbytes: int) -> None:
        wanted = nbytes if nbytes > _FREE_BYTES else 0
        if wanted != self._claimed_bytes:
            kept = self.frontend.kept
            if not kept.claim(self, wanted):
                raise kept.error(wanted - self._claimed_bytes)
            self._claimed_bytes = wanted
        self._kept_bytes = nbytes

    def make_room(self) -> None:
        """Disconnect a slow client, because others need the memory."""
        log.info("Closing the connection of a slow client: others need the memory that is buffered for it.")
        self.transport.abort()

    # Once a second

    def check_progress(self) -> None:
        """Close a connection whose transfer is too slow, and reset calls whose client does not read."""
        now = self.frontend.seconds
        seconds, self._checked_at = max(1, now - self._checked_at), now
        self._http2.time_passed(seconds)
        received, self._received_then = self._received_bytes - self._received_then, self._received_bytes
        if self._write_paused:
            unsent = self._unsent_bytes()
            moved, self._unsent_then = max(0, self._unsent_then - unsent), unsent
        elif self._kept_bytes:
            moved = received
        else:
            self.pace.rest()
            return
        self.pace.advance(seconds, moved)
        if self.pace.has_stalled:
            log.info(
                "Closing a connection whose client sends or reads less than %d bytes a second.", LOWEST_RATE_BYTES_PER_S
            )
            self.transport.abort()

    def _unsent_bytes(self) -> int:
        if self.transport.is_closing():
            return 0
        descriptor: int = self.transport.get_extra_info("socket").fileno()
        return int(self.transport.get_write_buffer_size()) + kernel_unsent_bytes(descriptor)

    # The end

    def shut_down(self) -> None:
        """Accept no further calls; the connection closes after the last one."""
        self._http2.begin_shutdown()
        self._flush()
        if not self._http2.streams:
            self._http2.finish_shutdown()
            self._flush()

    def abort(self) -> None:
        """End now."""
        self._http2.close(ErrorCode.NO_ERROR)
        self.transport.abort()
