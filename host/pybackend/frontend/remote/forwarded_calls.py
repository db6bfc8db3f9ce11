"""A front end's port for gRPC: which calls it answers, and the way of all others to the engine's process and back.

Each client's calls go through one tunnel, on which the front end is a client of HTTP/2 that knows its server: heads,
messages and windows pass as they are, a stream of the client being a stream of the tunnel. A client may send as much as
the engine's process gives back, and unread answers hold back one stream of the engine's process, and no other.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Final

from pybackend.engine.door import Door
from pybackend.frontend.access_rules import AccessRules
from pybackend.frontend.grpc.answer import stop_receiving
from pybackend.frontend.grpc.call import AnsweredCall, GrpcCall
from pybackend.frontend.grpc.call_factory import INFER, STREAM_INFER, CallFactory, begin_call
from pybackend.frontend.grpc.connection import GrpcConnection, connections
from pybackend.frontend.grpc.errors import trailers_only
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead, CallPolicy, spelled
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.remote.engine import RemoteEngine
from pybackend.frontend.remote.forwarding import forwards_all
from pybackend.frontend.remote.tunnels import Tunnel, Tunneller
from pybackend.frontend.request_log import RequestLog
from pybackend.frontend.tls import Secured
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend.settings import GrpcSettings
from pybackend_http2 import (
    Config,
    Fields,
    HeaderBlock,
    RemoteProtocolError,
    RequestHead,
    Stream,
    StreamReceiver,
    encode_request,
    frames,
)
from pybackend_http2.settings import INITIAL_WINDOW_SIZE

_WINDOW_BYTES: Final = 1024 * 1024
"""Data that the engine's process may send on a stream before its client has taken it."""

_CREDIT_BYTES: Final = 64 * 1024 * 1024
"""Data of all streams of a tunnel after which its window is opened again."""

_SETTING = struct.Struct(">HI")
_ANSWERED_HERE = frozenset({INFER, STREAM_INFER})
_ANSWERED = frozenset({frames.PING, frames.SETTINGS})
_LAST_STREAM = frames.LARGEST_WINDOW_BYTES - 2

_GREETING = b"".join(
    (
        frames.PREFACE,
        frames.frame(frames.SETTINGS, 0, 0, _SETTING.pack(INITIAL_WINDOW_SIZE, _WINDOW_BYTES)),
        frames.window_update(0, frames.LARGEST_WINDOW_BYTES - frames.DEFAULT_WINDOW_BYTES),
    )
)

_NO_ROOM = trailers_only(
    GrpcStatus.UNAVAILABLE, "the server has as many connections as it can take: close some, or try again later"
)


class ForwardingGrpc(GrpcFrontend[Door]):
    """The port for gRPC of a front end. It answers calls of inference that the rules let pass."""

    def __init__(
        self,
        tunneller: Tunneller,
        engine: RemoteEngine,
        infer: InferFrontend[Door],
        rules: AccessRules,
        request_log: RequestLog,
        settings: GrpcSettings,
    ) -> None:
        fast_paths, policy = infer.plans is not None, rules.call_policy()
        super().__init__(
            infer.engine, infer.limits, infer.client_memory, request_log, policy, settings, fast_paths=fast_paths
        )
        # Credentials stay as they are, because the engine's process decides by them.
        self.config = replace(self.config, read_text=partial(_read_metadata, policy))
        self._factory = ForwardingCallFactory(self, engine, tunneller)

    async def start(self, sock: socket.socket, tls: Secured | None) -> None:
        """Accept connections on a bound socket."""
        await self.listen(sock, connections(self, self._factory), b"", tls)

    def left(self, connection: GrpcConnection) -> None:
        self._factory.left(connection.peer)
        super().left(connection)


def _read_metadata(policy: CallPolicy | None, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return (name, value) if name[:1] == b":" else spelled(policy, name, value)


class ForwardingCallFactory(CallFactory):
    """Makes the calls of a front end's port, which forwards most of them.

    The configuration of HTTP/2 is that of the engine's process.
    """

    def __init__(self, frontend: GrpcFrontend[Door], engine: RemoteEngine, tunneller: Tunneller) -> None:
        super().__init__(frontend)
        self._engine = engine
        self._config = frontend.config
        self._tunneller = tunneller
        self._tunnels: dict[Peer, CallTunnel] = {}

    def begin(self, peer: Peer, stream: Stream, head: CallHead, request: RequestHead) -> StreamReceiver:
        if head.path in _ANSWERED_HERE and head.refusal is None and not forwards_all(self._engine):
            call, refusal = begin_call(peer, stream, head)
            if refusal is None:
                self.handle_inference(call)
                return call
            call.forget_deadline()
        tunnel = self._tunnels.get(peer)
        if tunnel is None or not tunnel.takes_calls:
            tunnel = self._tunnels[peer] = CallTunnel(self, peer, self._config)
            tunnel.tunnel = self._tunneller.open("grpc", peer.transport, tunnel)
            tunnel.tunnel.write(_GREETING)
        return tunnel.begin(stream, request)

    def begin_known(
        self, peer: Peer, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int
    ) -> GrpcCall | None:
        return None if forwards_all(self._engine) else super().begin_known(peer, stream, head, data, start, stop)

    def left(self, peer: Peer) -> None:
        """A client has gone, and its calls were reset."""
        tunnel = self._tunnels.pop(peer, None)
        if tunnel is not None:
            tunnel.tunnel.close()

    def forget(self, peer: Peer, tunnel: CallTunnel) -> None:
        """Use a tunnel no more."""
        if self._tunnels.get(peer) is tunnel:
            del self._tunnels[peer]


class CallTunnel:
    """The tunnel of one client's calls."""

    tunnel: Tunnel

    def __init__(self, factory: ForwardingCallFactory, peer: Peer, config: Config) -> None:
        self._factory = factory
        self._peer = peer
        self._calls: dict[int, ForwardedCall] = {}
        self._next = 1
        self._most_frame_bytes = config.max_frame_bytes
        self._window = config.connection_window_bytes
        self._waiting: deque[tuple[int, bytes, int]] = deque()
        self._unread = b""
        self._taken_bytes = 0
        self.takes_calls = True  # further calls may begin in it

    # Calls

    def begin(self, stream: Stream, head: RequestHead) -> ForwardedCall:
        number, self._next = self._next, self._next + 2
        self.takes_calls = self._next < _LAST_STREAM
        call = self._calls[number] = ForwardedCall(self, stream, number)
        self.send(frames.HEADERS, frames.END_HEADERS, number, encode_request(head, stream.fields_apart))
        return call

    def send(self, kind: int, flags: int, number: int, payload: bytes = b"") -> None:
        self.tunnel.write(frames.frame(kind, flags, number, payload))

    def send_data(self, number: int, payload: bytes | memoryview, *, ended: bool) -> None:
        """Send a piece of a request, as soon as the engine's process takes it."""
        start, size = 0, len(payload)
        while True:
            piece = bytes(payload[start : start + self._most_frame_bytes])
            start += len(piece)
            self._waiting.append((number, piece, frames.END_STREAM if ended and start == size else 0))
            if start == size:
                break
        self._send_waiting()
        if self._waiting:
            self._peer.transport.pause_reading()

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting and len(waiting[0][1]) <= self._window:
            number, piece, flags = waiting.popleft()
            if number in self._calls:
                self._window -= len(piece)
                self.send(frames.DATA, flags, number, piece)

    @property
    def has_sent_all(self) -> bool:
        """True if nothing of any call waits here for the engine's process."""
        return self.tunnel.is_open and not self._waiting

    def reset(self, number: int, code: int, error: RemoteProtocolError | None) -> None:
        """The client has given a call up, perhaps by breaking a rule."""
        if error is not None:
            self._peer.frontend.malformed(str(error), self._peer.address)
        if number in self._calls:
            self.send(frames.RST_STREAM, 0, number, frames.U32.pack(code))

    def ended(self, number: int) -> None:
        """A call has ended on both sides, or was reset."""
        if self._calls.pop(number, None) is not None and not self._calls and not self.takes_calls:
            self._factory.forget(self._peer, self)
            self.tunnel.close()

    # Frames of the engine's process

    def on_tunnel_data(self, data: bytes) -> None:
        data, start = self._unread + data if self._unread else data, 0
        while len(data) - start >= frames.FRAME_HEADER_BYTES:
            word, flags, number = frames.FRAME_HEADER.unpack_from(data, start)
            begin = start + frames.FRAME_HEADER_BYTES
            end = begin + (word >> 8)
            if end > len(data):
                break
            start = end
            self._on_frame(word & 0xFF, flags, number, data[begin:end])
        self._unread = data[start:]
        self._peer.flush_soon()

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        call = self._calls.get(number)
        if kind == frames.DATA:
            if call is not None:
                call.on_answer(payload)
            else:
                self.taken(len(payload))
        elif call is not None:
            if kind == frames.HEADERS:
                call.on_headers(HeaderBlock.of(payload), ended=bool(flags & frames.END_STREAM))
            elif kind == frames.WINDOW_UPDATE:
                call.on_given_back(frames.U32.unpack(payload)[0])
            elif kind == frames.RST_STREAM:
                call.on_engine_reset(frames.U32.unpack(payload)[0])
        elif number == 0:
            self._on_connection_frame(kind, flags, payload)

    def _on_connection_frame(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._window += frames.U32.unpack(payload)[0]
            if self._waiting:
                self._send_waiting()
                if not self._waiting and not self._peer.is_full and not self._peer.is_lost:
                    self._peer.transport.resume_reading()
        elif kind == frames.GOAWAY:
            self.takes_calls = False
        elif kind in _ANSWERED and not flags & frames.ACK:
            self.send(kind, frames.ACK, 0, payload if kind == frames.PING else b"")

    def taken(self, nbytes: int) -> None:
        """So much data of the engine's process has reached a client, or nobody waits for it."""
        self._taken_bytes += nbytes
        if self._taken_bytes >= _CREDIT_BYTES:
            self.send(frames.WINDOW_UPDATE, 0, 0, frames.U32.pack(self._taken_bytes))
            self._taken_bytes = 0

    def on_no_tunnel(self) -> None:
        self._factory.forget(self._peer, self)
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.refuse()
        self._peer.flush_soon()

    def on_tunnel_lost(self) -> None:
        self.takes_calls = False
        self._factory.forget(self._peer, self)
        if self._calls:
            self._peer.transport.abort()

    def on_tunnel_full(self) -> None:
        """The windows of the client's streams hold it back."""

    def on_tunnel_free(self) -> None:
        """Nothing waits for that."""


class ForwardedCall(AnsweredCall):
    """A call that the engine's process answers."""

    def __init__(self, tunnel: CallTunnel, stream: Stream, number: int) -> None:
        self._tunnel = tunnel
        self._stream = stream
        self._number = number
        self._unreturned_bytes = self._unread_bytes = self._read_bytes = 0
        self._reset_code: int | None = None
        self._client_ended = self._engine_ended = False

    # The client

    def on_data(self, payload: bytes | memoryview, ended: bool) -> None:
        # Other calls must not wait for this one: the connection's window is that of the tunnel.
        self._stream.lend(len(payload))
        self._unreturned_bytes += len(payload)
        self._tunnel.send_data(self._number, payload, ended=ended)
        if ended:
            self._end(client=True)

    def on_trailers(self, _trailers: Fields) -> None:
        self._tunnel.send_data(self._number, b"", ended=True)
        self._end(client=True)

    def on_reset(self, code: int, error: RemoteProtocolError | None) -> None:
        self._tunnel.reset(self._number, code, error)
        self._finish()
        self._read_all()

    def on_drained(self) -> None:
        self._read_all()
        if self._reset_code is not None:
            self._stream.reset(self._reset_code)

    def is_working(self) -> bool:
        """True once the engine's process has all of it, and looks after its own end of the tunnel."""
        return self._engine_ended or (self._client_ended and self._tunnel.has_sent_all)

    # The engine's process

    def on_headers(self, block: HeaderBlock, *, ended: bool) -> None:
        """The head of the answer, or its trailers."""
        if self._stream.head_sent:
            self._stream.send_trailers(block)
        else:
            self._stream.send_headers(block, end=ended)
        if ended:
            self._end(engine=True)

    def on_answer(self, payload: bytes) -> None:
        if self._stream.send_data(payload):
            self._read(len(payload))
        else:
            self._unread_bytes += len(payload)

    def on_given_back(self, count: int) -> None:
        """The client may send more."""
        count = min(count, self._unreturned_bytes)
        self._unreturned_bytes -= count
        self._stream.give_back(count)

    def on_engine_reset(self, code: int) -> None:
        """The call was ended; the rest of a whole answer must still reach the client."""
        if self._stream.waiting_bytes:
            self._reset_code = code
        else:
            self._stream.reset(code)
        self._finish()

    def refuse(self) -> None:
        """Nobody can answer it."""
        self._stream.send_headers(_NO_ROOM, end=True)
        stop_receiving(self._stream)
        self._return_bytes()

    def _read(self, count: int) -> None:
        """The client has taken a part of the answer."""
        self._tunnel.taken(count)
        self._read_bytes += count
        if self._read_bytes * 2 >= _WINDOW_BYTES and not self._engine_ended:
            self._tunnel.send(frames.WINDOW_UPDATE, 0, self._number, frames.U32.pack(self._read_bytes))
            self._read_bytes = 0

    def _read_all(self) -> None:
        count, self._unread_bytes = self._unread_bytes, 0
        self._read(count)

    def _end(self, *, client: bool = False, engine: bool = False) -> None:
        self._client_ended |= client
        self._engine_ended |= engine
        if self._client_ended and self._engine_ended:
            self._finish()

    def _finish(self) -> None:
        self._engine_ended = True
        self._return_bytes()
        self._tunnel.ended(self._number)

    def _return_bytes(self) -> None:
        count, self._unreturned_bytes = self._unreturned_bytes, 0
        if count:
            self._stream.give_back(count)
