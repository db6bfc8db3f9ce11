"""For tests of HTTP/2: a receiver that notes what it hears, and frames made and read by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import hpack

from pybackend_http2 import (
    Config,
    ConnectionReceiver,
    HeaderBlock,
    RemoteProtocolError,
    RequestHead,
    ServerConnection,
    Stream,
    StreamReceiver,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20

POST = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x")]

HEAD = HeaderBlock([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = HeaderBlock([(b"grpc-status", b"0")])


class Frame(NamedTuple):
    """A frame that was sent or received."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def frames(data: bytes) -> Iterator[Frame]:
    while data:
        length = int.from_bytes(data[:3], "big")
        kind, flags, stream_id = struct.unpack(">BBI", data[3:9])
        assert len(data) >= 9 + length, "the output ends inside a frame"
        yield Frame(kind, flags, stream_id, data[9 : 9 + length])
        data = data[9 + length :]


def u32(*values: int) -> bytes:
    """Pack numbers of 32 bits."""
    return struct.pack(f">{len(values)}I", *values)


def settings(**values: int) -> bytes:
    """Make a SETTINGS frame of ``id_N=value`` entries."""
    return frame(
        SETTINGS,
        0,
        0,
        b"".join(struct.pack(">HI", int(key.removeprefix("id_")), value) for key, value in values.items()),
    )


def block(*fields: tuple[Any, Any]) -> bytes:
    """Compress fields without a dynamic table."""
    encoder = hpack.Encoder()
    return encoder.encode([(name, value, True) for name, value in fields], huffman=False)


def headers(stream_id: int, *fields: tuple[Any, Any], flags: int = END_HEADERS | END_STREAM) -> bytes:
    """Make a HEADERS frame; without fields, that of a request."""
    return frame(HEADERS, flags, stream_id, block(*(fields or POST)))


def receive_all(connection: ServerConnection, data: bytes | memoryview) -> None:
    """Let a connection process all of these bytes."""
    offset = 0
    while offset < len(data):
        offset = connection.receive(data, offset)


class Call(StreamReceiver):
    """Notes what it hears of one stream."""

    def __init__(self, server: Server, stream: Stream, head: RequestHead) -> None:
        self.server = server
        self.stream = stream
        self.head = head
        self.body = bytearray()
        self.ended = False

    def on_data(self, payload: bytes | memoryview, ended: bool, /) -> None:
        self.body += payload
        self.ended = ended
        if self.server.gives_back:
            self.stream.give_back(len(payload))
        self.server.events.append(("data", self.stream.id, bytes(payload), ended))

    def on_trailers(self, trailers, /) -> None:
        self.ended = True
        self.server.events.append(("trailers", self.stream.id, trailers))

    def on_reset(self, code: int, error: RemoteProtocolError | None, /) -> None:
        self.server.events.append(("reset", self.stream.id, code, error and error.section))

    def on_drained(self) -> None:
        self.server.events.append(("drained", self.stream.id))


class Server(ConnectionReceiver):
    """A connection with receivers that note what they hear.

    Attributes:
        events: everything that was heard, in order.
        calls: the receivers of all streams, by number.
        gives_back: received data is given back at once.
    """

    def __init__(self, config: Config | None = None, *, greet: bool = True, gives_back: bool = True) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.calls: dict[int, Call] = {}
        self.gives_back = gives_back
        self.connection = ServerConnection(self, config or Config())
        if greet:
            self.receive(PREFACE + settings() + frame(SETTINGS, ACK, 0))
            self.output()

    def on_request(self, stream: Stream, head: RequestHead, ended: bool, /) -> Call:
        self.events.append(("request", stream.id, head.path, ended))
        call = self.calls[stream.id] = Call(self, stream, head)
        call.ended = ended
        return call

    def receive(self, data: bytes, *, bytewise: bool = False) -> None:
        """Let bytes arrive, in one piece or one by one."""
        for piece in (data[n : n + 1] for n in range(len(data))) if bytewise else (data,):
            receive_all(self.connection, piece)

    def output(self, limit_bytes: int = 2**40) -> bytes:
        return b"".join(self.connection.take_output(limit_bytes))

    def sent(self) -> list[Frame]:
        """Take all output as frames."""
        return list(frames(self.output()))

    def stream(self, stream_id: int) -> Stream:
        return self.calls[stream_id].stream
