"""HTTP/2 alone: unary calls as a gRPC client sends them, through our connection and through the h2 library's.

No socket, no protobuf, no model: bytes of the client in, bytes of the server out, in this interpreter.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.events

from pybackend_http2 import (
    AnswerForm,
    Config,
    HeaderBlock,
    RequestHead,
    ServerConnection,
    Stream,
    StreamReceiver,
)
from tests.bench import progress
from tests.bench.plan import Plan

_REQUEST_BYTES, _ANSWER_BYTES = 150, 110
"""The size of add_sub's messages, about."""

_REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "127.0.0.1:8001"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
    ("user-agent", "grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
_HEAD_FIELDS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_TRAILER_FIELDS = [(b"grpc-status", b"0")]
_HEAD, _TRAILERS = HeaderBlock(_HEAD_FIELDS), HeaderBlock(_TRAILER_FIELDS)
_ANSWER = bytes(_ANSWER_BYTES)
_FORM = AnswerForm(_HEAD, b"%b", _TRAILERS)

_H2_SHARE = 20
"""The library is much slower and gets fewer calls."""


@dataclass(frozen=True)
class Http2Sample:
    """One round of one server's end.

    Attributes:
        library: ``pybackend`` or ``h2``.
        calls_per_read: calls that arrive in one piece, and whose answers leave together.
        cpu_us: CPU time per call.
    """

    library: str
    calls_per_read: int
    round: int
    calls: int
    cpu_us: float


def measure(plan: Plan) -> list[Http2Sample]:
    """Let each end answer its calls, in turn."""
    samples: list[Http2Sample] = []
    for round_ in range(plan.http2_rounds):
        for library, calls, make in (
            ("pybackend", plan.http2_calls, _Ours),
            ("h2", plan.http2_calls // _H2_SHARE, _H2),
        ):
            for calls_per_read in (1, 8):
                cpu_us = _measured(make(), calls, calls_per_read)
                progress.show(f"HTTP/2 by {library}, {calls_per_read} calls at a time: {cpu_us:.2f} us of CPU per call")
                samples.append(Http2Sample(library, calls_per_read, round_, calls, cpu_us))
    return samples


class _Ours:
    """Answers by our connection; also the receiver of its only kind of stream."""

    def __init__(self) -> None:
        self.answered = 0
        self._connection = ServerConnection(self, Config())

    def exchange(self, data: bytes) -> int:
        """Answer what arrived; returns the bytes of the answers."""
        offset = 0
        while offset < len(data):
            offset = self._connection.receive(data, offset)
        return sum(map(len, self._connection.take_output()))

    def on_request(self, stream: Stream, head: RequestHead, ended: bool, /) -> _OurCall:
        head.takes_whole = True
        return _OurCall(self, stream)

    def on_whole_request(self, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int, /) -> _OurCall:
        self.answered += 1
        stream.respond_in(_FORM, _ANSWER_BYTES, (_ANSWER,))
        return _OurCall(self, stream)


class _OurCall(StreamReceiver):
    __slots__ = ("_server", "_stream")

    def __init__(self, server: _Ours, stream: Stream) -> None:
        self._server = server
        self._stream = stream

    def on_data(self, payload: bytes | memoryview, ended: bool, /) -> None:
        self._stream.give_back(len(payload))
        if ended:
            self._server.answered += 1
            self._stream.respond(_HEAD, _ANSWER, _TRAILERS)


class _H2:
    """Answers by the library's connection."""

    def __init__(self) -> None:
        self.answered = 0
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self._connection.initiate_connection()

    def exchange(self, data: bytes) -> int:
        """Answer what arrived; returns the bytes of the answers."""
        connection = self._connection
        for event in connection.receive_data(data):
            match event:
                case h2.events.DataReceived(stream_id=stream_id, flow_controlled_length=size):
                    connection.acknowledge_received_data(size, stream_id)
                case h2.events.StreamEnded(stream_id=stream_id):
                    self.answered += 1
                    connection.send_headers(stream_id, _HEAD_FIELDS)
                    connection.send_data(stream_id, _ANSWER)
                    connection.send_headers(stream_id, _TRAILER_FIELDS, end_stream=True)
        return len(connection.data_to_send())


def _measured(server: _Ours | _H2, calls: int, calls_per_read: int) -> float:
    """Answer so many calls; returns microseconds of CPU time per call."""
    greeting, reads = _client(calls, calls_per_read)
    server.exchange(greeting)
    before, began = server.answered, time.process_time()
    for read in reads:
        if not server.exchange(read):
            raise RuntimeError("a read of calls was not answered")
    seconds = time.process_time() - began
    if server.answered - before != calls:
        raise RuntimeError(f"of {calls} calls {server.answered - before} were answered")
    return seconds / calls * 1e6


def _client(calls: int, calls_per_read: int) -> tuple[bytes, Sequence[bytes]]:
    """The bytes of a client whose header table is warm: its greeting with two calls, and its further reads."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    client.increment_flow_control_window(2**30)
    greeting = client.data_to_send()
    for stream_id in (1, 3):
        client.send_headers(stream_id, _REQUEST)
        client.send_data(stream_id, bytes(_REQUEST_BYTES), end_stream=True)
        call = client.data_to_send()
        greeting += call
    return greeting, list(_reads(call, calls, calls_per_read))


def _reads(call: bytes, calls: int, calls_per_read: int) -> Iterator[bytes]:
    """Repeat the bytes of a call with other stream numbers, so many in each read."""
    middle = 9 + int.from_bytes(call[:3], "big")
    for first in range(0, calls, calls_per_read):
        read = bytearray()
        for number in range(first, min(calls, first + calls_per_read)):
            stream = struct.pack(">I", 5 + 2 * number)
            for frame in (call[:middle], call[middle:]):
                read += frame[:5] + stream + frame[9:]
        yield bytes(read)
