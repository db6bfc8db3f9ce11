"""The rules of RFC 9113 that a server must enforce, by section: bytes in, and the error that must come out.

They are the rules that the h2spec suite checks too, less those of RFC 7540 that RFC 9113 has withdrawn (a stream that
depends on itself: section 5.3.2 lets servers ignore all priority signals).
"""

import dataclasses
import re

import pytest

from pybackend_http2 import Config, RemoteProtocolError
from tests.support.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    POST,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Server,
    block,
    frame,
    headers,
    settings,
    u32,
)

OPEN = headers(1, flags=END_HEADERS)
"""Stream 1 is open: its request has not ended."""

HALF_CLOSED = headers(1)
"""Stream 1 is half-closed (remote): the client has ended its request."""

CLOSED = OPEN + frame(RST_STREAM, 0, 1, u32(8))
"""Stream 1 is closed: the client has reset it."""

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 1, 3, 5, 6
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 0xB


def fields(*changes, without=(), extra=(), flags=END_HEADERS | END_STREAM, stream_id=1):
    """A request whose pseudo-header fields are changed, left out, or followed by others."""
    changed = dict(changes)
    kept = [(name, changed.get(name, value)) for name, value in POST if name not in without]
    return headers(stream_id, *kept, *extra, flags=flags)


LONG_FIELD = block(("a", "b" * 17_000))

ENDS_CONNECTION = [
    # section, what is wrong, bytes after the handshake, code
    ("4.2", "DATA longer than SETTINGS_MAX_FRAME_SIZE", OPEN + frame(DATA, 0, 1, b"x" * 16385), FRAME_SIZE_ERROR),
    ("4.2", "HEADERS longer than SETTINGS_MAX_FRAME_SIZE", frame(HEADERS, 5, 1, b"x" * 16385), FRAME_SIZE_ERROR),
    ("4.2", "an unknown frame that is too long", frame(0x42, 0, 0, b"x" * 16385), FRAME_SIZE_ERROR),
    ("4.3", "an index beyond the tables", frame(HEADERS, 5, 1, b"\xff\xff\x01"), COMPRESSION_ERROR),
    ("4.3", "a field that is cut off", frame(HEADERS, 5, 1, b"\x00\x05ab"), COMPRESSION_ERROR),
    ("4.3", "index 0", frame(HEADERS, 5, 1, b"\x80"), COMPRESSION_ERROR),
    ("4.3", "a table larger than SETTINGS_HEADER_TABLE_SIZE", frame(HEADERS, 5, 1, b"\x3f\xe2\x1f"), COMPRESSION_ERROR),
    ("4.3", "a table size behind a field", frame(HEADERS, 5, 1, b"\x83\x20"), COMPRESSION_ERROR),
    ("4.3", "three table sizes", frame(HEADERS, 5, 1, b"\x20\x3f\xe1\x1f\x20" + block(*POST)), COMPRESSION_ERROR),
    ("4.3", "Huffman padding of more than 7 bits", frame(HEADERS, 5, 1, b"\x83\x04\x82\xff\xff"), COMPRESSION_ERROR),
    ("4.3", "a fault in trailers", OPEN + frame(HEADERS, 5, 1, b"\x80"), COMPRESSION_ERROR),
    ("5.1", "HEADERS on a stream that the client has reset", CLOSED + HALF_CLOSED, STREAM_CLOSED),
    ("5.1.1", "an even stream", headers(2), PROTOCOL_ERROR),
    ("5.1.1", "a lower stream than before", headers(5) + headers(3), PROTOCOL_ERROR),
    ("5.1.1", "HEADERS on stream 0", headers(0), PROTOCOL_ERROR),
    ("6.1", "DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    ("6.1", "DATA on an idle stream", frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    ("6.1", "DATA on an even stream", OPEN + frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
    ("6.1", "more padding than DATA", OPEN + frame(DATA, PADDED, 1, b"\x05abc"), PROTOCOL_ERROR),
    ("6.1", "padded DATA without bytes", OPEN + frame(DATA, PADDED, 1), FRAME_SIZE_ERROR),
    ("6.2", "more padding than HEADERS", frame(HEADERS, 5 | PADDED, 1, b"\xff" + block(*POST)), PROTOCOL_ERROR),
    ("6.2", "padded HEADERS without bytes", frame(HEADERS, 5 | PADDED, 1), FRAME_SIZE_ERROR),
    ("6.2", "priority that is cut off", frame(HEADERS, 5 | WITH_PRIORITY, 1, b"\0\0"), PROTOCOL_ERROR),
    ("6.3", "PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
    ("6.3", "PRIORITY of 4 bytes on an idle stream", frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    ("6.4", "RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, u32(8)), PROTOCOL_ERROR),
    ("6.4", "RST_STREAM on an idle stream", frame(RST_STREAM, 0, 1, u32(8)), PROTOCOL_ERROR),
    ("6.4", "RST_STREAM of 3 bytes", OPEN + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    ("6.5", "SETTINGS on a stream", OPEN + frame(SETTINGS, 0, 1), PROTOCOL_ERROR),
    ("6.5", "SETTINGS of 3 bytes", frame(SETTINGS, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    ("6.5", "an acknowledgement with payload", frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
    ("6.5.2", "SETTINGS_ENABLE_PUSH of 2", settings(id_2=2), PROTOCOL_ERROR),
    ("6.5.2", "SETTINGS_INITIAL_WINDOW_SIZE beyond 2^31-1", settings(id_4=2**31), FLOW_CONTROL_ERROR),
    ("6.5.2", "SETTINGS_MAX_FRAME_SIZE below 16384", settings(id_5=16383), PROTOCOL_ERROR),
    ("6.5.2", "SETTINGS_MAX_FRAME_SIZE beyond 2^24-1", settings(id_5=2**24), PROTOCOL_ERROR),
    ("6.7", "PING on a stream", frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("6.7", "PING of 7 bytes", frame(PING, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    ("6.8", "GOAWAY on a stream", OPEN + frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("6.8", "GOAWAY of 7 bytes", frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    ("6.9", "WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    ("6.9", "WINDOW_UPDATE of the connection by 0", frame(WINDOW_UPDATE, 0, 0, u32(0)), PROTOCOL_ERROR),
    ("6.9", "WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, 0, 1, u32(1)), PROTOCOL_ERROR),
    ("6.9.1", "the connection's window overflows", frame(WINDOW_UPDATE, 0, 0, u32(2**31 - 1)), FLOW_CONTROL_ERROR),
    (
        "6.9.1",
        "DATA beyond the connection's window",
        b"".join(headers(n, flags=END_HEADERS) + 3 * frame(DATA, 0, n, bytes(16384)) for n in (1, 3)),
        FLOW_CONTROL_ERROR,
    ),
    (
        "6.9.2",
        "SETTINGS_INITIAL_WINDOW_SIZE lets a window overflow",
        OPEN + frame(WINDOW_UPDATE, 0, 1, u32(2**31 - 1 - 65535)) + settings(id_4=65536),
        FLOW_CONTROL_ERROR,
    ),
    ("6.10", "CONTINUATION that continues nothing", OPEN + frame(CONTINUATION, 4, 1, b""), PROTOCOL_ERROR),
    ("6.10", "CONTINUATION on stream 0", frame(CONTINUATION, 4, 0, b""), PROTOCOL_ERROR),
    (
        "6.10",
        "CONTINUATION behind the end of a header block",
        HALF_CLOSED + frame(CONTINUATION, 4, 1, block(("a", "b"))),
        PROTOCOL_ERROR,
    ),
    ("6.10", "DATA inside a header block", headers(1, flags=0) + frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    ("6.10", "PING inside a header block", headers(1, flags=0) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR),
    ("6.10", "HEADERS inside a header block", headers(1, flags=0) + headers(1), PROTOCOL_ERROR),
    ("6.10", "CONTINUATION of another stream", headers(1, flags=0) + frame(CONTINUATION, 4, 3, b""), PROTOCOL_ERROR),
    ("6.10", "an unknown frame inside a header block", headers(1, flags=0) + frame(0x42, 0, 1, b""), PROTOCOL_ERROR),
    ("8.4", "PUSH_PROMISE from a client", OPEN + frame(PUSH_PROMISE, 4, 1, u32(2)), PROTOCOL_ERROR),
    ("10.5.1", "a header block beyond its bound", frame(HEADERS, 5, 1, bytes(16300)), ENHANCE_YOUR_CALM),
]

ENDS_STREAM = [
    ("5.1", "DATA after the end of the request", HALF_CLOSED + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    ("5.1", "HEADERS after the end of the request", HALF_CLOSED + HALF_CLOSED, STREAM_CLOSED),
    ("5.1", "DATA on a stream that the client has reset", CLOSED + frame(DATA, 0, 1, b"x"), STREAM_CLOSED),
    ("6.3", "PRIORITY of 4 bytes", OPEN + frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    ("6.9", "WINDOW_UPDATE by 0", OPEN + frame(WINDOW_UPDATE, 0, 1, u32(0)), PROTOCOL_ERROR),
    ("6.9.1", "the stream's window overflows", OPEN + frame(WINDOW_UPDATE, 0, 1, u32(2**31 - 1)), FLOW_CONTROL_ERROR),
    ("6.9.1", "DATA beyond the stream's window", OPEN + 5 * frame(DATA, 0, 1, bytes(14000)), FLOW_CONTROL_ERROR),
    ("8.1", "trailers without END_STREAM", OPEN + headers(1, ("a", "b"), flags=END_HEADERS), PROTOCOL_ERROR),
    (
        "8.1.1",
        "a body longer than content-length",
        fields(extra=[("content-length", "1")], flags=4) + frame(DATA, 0, 1, b"xy"),
        PROTOCOL_ERROR,
    ),
    (
        "8.1.1",
        "a body shorter than content-length",
        fields(extra=[("content-length", "3")], flags=4) + frame(DATA, 1, 1, b"xy"),
        PROTOCOL_ERROR,
    ),
    (
        "8.1.1",
        "several DATA frames shorter than content-length",
        fields(extra=[("content-length", "5")], flags=4) + frame(DATA, 0, 1, b"xy") + frame(DATA, 1, 1, b"xy"),
        PROTOCOL_ERROR,
    ),
    (
        "8.1.1",
        "trailers before content-length is reached",
        fields(extra=[("content-length", "3")], flags=4) + headers(1, ("a", "b")),
        PROTOCOL_ERROR,
    ),
    ("8.1.1", "no body, but a content-length", fields(extra=[("content-length", "3")]), PROTOCOL_ERROR),
    ("8.1.1", "a content-length that is no number", fields(extra=[("content-length", "+3")], flags=4), PROTOCOL_ERROR),
    (
        "8.1.1",
        "two different content-lengths",
        fields(extra=[("content-length", "3"), ("content-length", "4")], flags=4),
        PROTOCOL_ERROR,
    ),
    ("8.2.1", "a capital in a name", fields(extra=[("X-Test", "ok")]), PROTOCOL_ERROR),
    ("8.2.1", "a blank in a name", fields(extra=[("x test", "ok")]), PROTOCOL_ERROR),
    ("8.2.1", "a colon in a name", fields(extra=[("x:test", "ok")]), PROTOCOL_ERROR),
    ("8.2.1", "an empty name", fields(extra=[("", "ok")]), PROTOCOL_ERROR),
    ("8.2.1", "a name that is not ASCII", fields(extra=[(b"caf\xe9", "ok")]), PROTOCOL_ERROR),
    ("8.2.1", "NUL in a value", fields(extra=[("x-test", "a\0b")]), PROTOCOL_ERROR),
    ("8.2.1", "CR in a value", fields(extra=[("x-test", "a\rb")]), PROTOCOL_ERROR),
    ("8.2.1", "LF in a value", fields(extra=[("x-test", "a\nb")]), PROTOCOL_ERROR),
    ("8.2.1", "LF at the end of a value", fields(extra=[("x-test", "a\n")]), PROTOCOL_ERROR),
    ("8.2.1", "a value that begins with a blank", fields(extra=[("x-test", " a")]), PROTOCOL_ERROR),
    ("8.2.1", "a value that ends with a tab", fields(extra=[("x-test", "a\t")]), PROTOCOL_ERROR),
    ("8.2.1", "LF in :path", fields((":path", "/a\nb")), PROTOCOL_ERROR),
    ("8.2.1", "a fault in trailers", OPEN + headers(1, ("X", "b")), PROTOCOL_ERROR),
    *(
        ("8.2.2", f"the field {name}", fields(extra=[(name, "x")]), PROTOCOL_ERROR)
        for name in ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")
    ),
    ("8.2.2", "te that is not trailers", fields(extra=[("te", "trailers, deflate")]), PROTOCOL_ERROR),
    (
        "8.3",
        "a pseudo-header field after others",
        fields(without=[":path"], extra=[("a", "b"), (":path", "/")]),
        PROTOCOL_ERROR,
    ),
    ("8.3", "a pseudo-header field in trailers", OPEN + headers(1, (":method", "POST")), PROTOCOL_ERROR),
    ("8.3.1", "an unknown pseudo-header field", headers(1, (":test", "x"), *POST), PROTOCOL_ERROR),
    ("8.3.1", ":status in a request", headers(1, (":status", "200"), *POST), PROTOCOL_ERROR),
    ("8.3.1", ":protocol, which was not offered", headers(1, *POST, (":protocol", "websocket")), PROTOCOL_ERROR),
    *(("8.3.1", f"no {name}", fields(without=[name]), PROTOCOL_ERROR) for name in (":method", ":scheme", ":path")),
    *(
        ("8.3.1", f"{name} twice", headers(1, (name, "x"), *POST), PROTOCOL_ERROR)
        for name in (":method", ":scheme", ":path", ":authority")
    ),
    ("8.3.1", "an empty :path", fields((":path", "")), PROTOCOL_ERROR),
    ("8.3.1", "a :path without a slash", fields((":path", "a")), PROTOCOL_ERROR),
    ("8.3.1", "an asterisk in another method than OPTIONS", fields((":path", "*")), PROTOCOL_ERROR),
    ("8.3.1", "user information in :authority", fields((":authority", "me@x")), PROTOCOL_ERROR),
    ("8.3.1", "a host other than :authority", fields(extra=[("host", "y")]), PROTOCOL_ERROR),
    ("8.5", "CONNECT with a path", fields((":method", "CONNECT")), PROTOCOL_ERROR),
    ("8.5", "CONNECT without :authority", headers(1, (":method", "CONNECT")), PROTOCOL_ERROR),
]

ACCEPTED = [
    ("4.1", "an unknown frame", frame(0x42, 0xFF, 1, b"x" * 100)),
    ("4.1", "unknown flags", frame(PING, 0xFE, 0, bytes(8))),
    ("4.1", "a reserved bit", frame(PING, 0, 0x8000_0000, bytes(8))),
    ("4.1", "a reserved bit before a stream", frame(HEADERS, 5, 0x8000_0001, block(*POST))),
    ("4.3", "two table sizes", frame(HEADERS, 5, 1, b"\x20\x3f\xe1\x1f" + block(*POST))),
    ("4.3", "a header block in three frames", headers(1, flags=END_STREAM) + frame(CONTINUATION, 0, 1) + frame(CONTINUATION, 4, 1, block(("a", "b")))),
    (
        "4.3",
        "a header block longer than a frame may be",
        headers(1, flags=END_STREAM) + frame(CONTINUATION, 0, 1, LONG_FIELD[:9000]) + frame(CONTINUATION, 4, 1, LONG_FIELD[9000:]),
    ),
    ("5.1", "WINDOW_UPDATE after the end of the request", HALF_CLOSED + frame(WINDOW_UPDATE, 0, 1, u32(1))),
    ("5.1", "WINDOW_UPDATE of a closed stream", CLOSED + frame(WINDOW_UPDATE, 0, 1, u32(1))),
    ("5.1", "RST_STREAM of a closed stream", CLOSED + frame(RST_STREAM, 0, 1, u32(1))),
    ("5.1", "PRIORITY of a closed stream", CLOSED + frame(PRIORITY, 0, 1, bytes(5))),
    ("5.1.1", "stream numbers that leave gaps", headers(5) + headers(11)),
    ("5.3.2", "a stream that depends on itself", frame(PRIORITY, 0, 1, u32(1) + b"\0")),
    ("5.3.2", "priority in HEADERS", frame(HEADERS, 5 | WITH_PRIORITY, 1, u32(1) + b"\0" + block(*POST))),
    ("5.5", "an unknown setting", settings(id_666=1)),
    ("6.1", "DATA with padding only", OPEN + frame(DATA, PADDED | END_STREAM, 1, b"\x03\0\0\0")),
    ("6.2", "HEADERS with padding", frame(HEADERS, 5 | PADDED, 1, b"\x03" + block(*POST) + bytes(3))),
    ("6.5", "the same setting twice", frame(SETTINGS, 0, 0, b"\0\x04\0\0\0\x01" b"\0\x04\0\0\0\x02")),
    ("8.1", "trailers", OPEN + headers(1, ("a", "b"))),
    ("8.1.1", "a body of its content-length", fields(extra=[("content-length", "2")], flags=4) + frame(DATA, 1, 1, b"xy")),
    ("8.1.1", "a content-length of 0", fields(extra=[("content-length", "0")])),
    ("8.2.1", "bytes beyond ASCII in a value", fields(extra=[("x-test", b"\xe9\x80")])),
    ("8.2.1", "an empty value", fields(extra=[("x-test", "")])),
    ("8.2.2", "te: trailers", fields(extra=[("te", "trailers")])),
    ("8.3.1", "a host without :authority", fields(without=[":authority"], extra=[("host", "y")])),
    ("8.3.1", "a host that equals :authority", fields(extra=[("host", "X")])),
    ("8.3.1", "OPTIONS *", fields((":method", "OPTIONS"), (":path", "*"))),
    ("8.5", "CONNECT", headers(1, (":method", "CONNECT"), (":authority", "x:1"))),
    ("8.7", "a scheme other than http", fields((":scheme", "https"))),
]  # fmt: skip

CONFIG = Config(
    stream_window_bytes=65535, connection_window_bytes=80000, max_frame_bytes=16384, max_header_list_bytes=8000
)


def _ids(rows):
    return [f"{row[0]} {row[1]}" for row in rows]


@pytest.mark.parametrize(("section", "_wrong", "data", "code"), ENDS_CONNECTION, ids=_ids(ENDS_CONNECTION))
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "byte by byte"])
def test_rule_of_the_connection(section, _wrong, data, code, bytewise):
    server = Server(CONFIG, gives_back=False)
    with pytest.raises(RemoteProtocolError, match=re.escape(f"(RFC 9113 section {section})")) as caught:
        server.receive(data, bytewise=bytewise)
    assert (caught.value.code, caught.value.section) == (code, section)
    last = server.sent()[-1]
    assert (last.kind, last.payload[4:8]) == (GOAWAY, u32(code))
    assert last.payload[8:].decode() == str(caught.value)
    assert server.connection.is_finished


@pytest.mark.parametrize(("section", "_wrong", "data", "code"), ENDS_STREAM, ids=_ids(ENDS_STREAM))
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "byte by byte"])
def test_rule_of_a_stream(section, _wrong, data, code, bytewise):
    server = Server(CONFIG, gives_back=False)
    server.receive(data, bytewise=bytewise)
    resets = [sent for sent in server.sent() if sent.kind in {RST_STREAM, GOAWAY}]
    assert resets == [(RST_STREAM, 0, 1, u32(code))]
    heard = [event for event in server.events if event[0] == "reset"]
    assert heard[-1:] in ([("reset", 1, code, section)], [("reset", 1, 8, None)], [])
    assert bool(heard) == bool(server.calls)
    server.receive(headers(3) + frame(PING, 0, 0, b"12345678"))
    assert (PING, ACK, 0, b"12345678") in server.sent()
    assert server.events[-1] == ("request", 3, b"/a", True)


@pytest.mark.parametrize(("_section", "_right", "data"), ACCEPTED, ids=_ids(ACCEPTED))
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "byte by byte"])
def test_right_bytes_are_accepted(_section, _right, data, bytewise):
    server = Server(dataclasses.replace(CONFIG, max_header_list_bytes=20_000))
    server.receive(data, bytewise=bytewise)
    server.receive(headers(101) + frame(PING, 0, 0, b"12345678"))
    sent = server.sent()
    assert [reply for reply in sent if reply.kind in {RST_STREAM, GOAWAY}] == []
    assert sent[-1] == (PING, ACK, 0, b"12345678")
    assert server.events[-1] == ("request", 101, b"/a", True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "this port speaks HTTP/2 without TLS only"),
        (b"\x16\x03\x01", "the connection does not begin with the HTTP/2 preface"),
        (PREFACE + frame(PING, 0, 0, bytes(8)), "the first frame is PING, not SETTINGS"),
        (PREFACE + frame(SETTINGS, ACK, 0), "the first frame is an acknowledgement of SETTINGS, not SETTINGS"),
    ],
    ids=["HTTP/1.1", "TLS", "another frame", "an acknowledgement"],
)
def test_preface(data, message):
    server = Server(greet=False)
    with pytest.raises(RemoteProtocolError, match=re.escape(message)) as caught:
        server.receive(data)
    assert (caught.value.code, caught.value.section) == (PROTOCOL_ERROR, "3.4")


def test_a_wrong_preface_is_noticed_at_its_first_wrong_byte():
    server = Server(greet=False)
    server.receive(b"P")
    with pytest.raises(RemoteProtocolError):
        server.receive(b"O")
