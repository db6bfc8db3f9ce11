"""The client of a connection, as its calls see it."""

import asyncio
from typing import Any

from pybackend.engine.door import Door
from pybackend.frontend.flow import ClientBytes
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.listener import is_secure
from pybackend.frontend.slices import Slices, TurnShare
from pybackend.inference.response import InferenceResponse
from pybackend_http2 import ServerConnection


class Peer:
    """A client: calls send their answers to it, and do their work in its share of the event loop.

    Attributes:
        frontend: state shared by all connections.
        http2: the protocol's state.
        flow: the client's bytes: their rate, and their memory.
        turn_share: its share in this turn of the event loop.
        slices: its work for later turns.
        address: of the client, for logs.
        is_secure: the connection has TLS: its transport gets copies of memory that is used again.
        active_at: when the client was last heard of, in seconds of the server's coarse clock.
        arriving_count: calls of which a large message is arriving.
        unhandled_bytes: received bytes that wait for a later turn.
        unwritten: responses to release once the transport holds no views of their memory.
        has_written: something was written to the client.
        is_full: the transport takes no more: the client reads more slowly than the server writes.
        is_leaving: the client is asked to begin no calls; the connection closes after the last one.
        is_lost: the connection was closed.
    """

    def __init__(
        self, frontend: GrpcFrontend[Door], http2: ServerConnection, flow: ClientBytes, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.frontend = frontend
        self.http2 = http2
        self.flow = flow
        self.loop = loop
        self.turn_share = TurnShare(loop)
        self.slices = Slices(frontend.slices)
        self.address = ""
        self.is_secure = False
        self.active_at = frontend.seconds
        self.arriving_count = self.unhandled_bytes = 0
        self.unwritten: list[InferenceResponse] = []
        self.has_written = self.is_full = self.is_leaving = self.is_lost = False
        self._flush_scheduled = False

    def connected(self, transport: Any) -> None:
        self.transport = transport
        address = transport.get_extra_info("peername")
        self.address = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local socket"
        self.is_secure = is_secure(transport)
        if not self.is_secure:
            # With marks of 0, a paused transport holds bytes and a resumed one holds none.
            transport.set_write_buffer_limits(high=0, low=0)

    def flush_soon(self) -> None:
        """Write at the end of this loop turn: answers of one turn leave together.

        Those of other connections leave right before and behind them. With work between two writes, a client of many
        connections would be woken by each of them, which costs a fifth more CPU time at 32 connections.
        """
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what HTTP/2 has for the client, as far as the transport takes it."""
        self._flush_scheduled = False
        if self.is_lost:
            self.release_written()
            return
        self.has_written = True
        http2, transport = self.http2, self.transport
        if self.is_leaving and self.frontend.refusing and not http2.streams:
            http2.finish_shutdown()
        while not self.is_full:
            pieces = http2.take_output()
            if len(pieces) == 1:
                transport.write(pieces[0])
            elif pieces:
                transport.writelines(pieces)
            if not http2.has_output:
                break
        if self.unwritten and not self.is_full:
            self.release_written()
        if self.is_full or http2.waiting_bytes or self.flow.unread_bytes:
            self.count_unread()
        if self.is_leaving and not self.is_full and http2.is_finished:
            transport.close()

    def release_when_written(self, response: InferenceResponse) -> None:
        """Release a response once the transport holds no views of its memory."""
        self.unwritten.append(response)
        self.flush_soon()

    def release_written(self) -> None:
        """The transport has written all that it had, or never will."""
        written, self.unwritten = self.unwritten, []
        for response in written:
            response.release()

    def count_unread(self) -> None:
        """Count the bytes that the client has not read, in the transport and before it, and those that wait to be handled."""
        unread = self.http2.waiting_bytes + self.unhandled_bytes
        if self.is_full and not self.transport.is_closing():
            unread += self.transport.get_write_buffer_size()
        self.flow.leave_unread(unread)
