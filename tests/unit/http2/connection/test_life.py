"""A connection's own life: greeting, PING, the two steps of a shutdown, and its ends."""

import struct

import pytest

from pybackend_http2 import Config, ErrorCode, LocalProtocolError, RemoteProtocolError
from tests.support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEAD,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    TRAILERS,
    WINDOW_UPDATE,
    Server,
    frame,
    headers,
    settings,
    u32,
)

SHUTDOWN_PING = (PING, 0, 0, b"shutdown")


def test_greeting():
    server = Server(Config(stream_window_bytes=2**20, connection_window_bytes=2**24), greet=False)
    first, second = server.sent()
    assert first[:3] == (SETTINGS, 0, 0)
    assert dict(struct.iter_unpack(">HI", first.payload)) == {3: 1024, 4: 2**20, 5: 65536, 6: 16384, 9: 1}
    assert second == (WINDOW_UPDATE, 0, 0, u32(2**24 - 65535))
    server.receive(PREFACE + settings() + frame(SETTINGS, ACK, 0))
    assert server.sent() == [(SETTINGS, ACK, 0, b"")]


@pytest.mark.parametrize(
    "values",
    [
        {"max_frame_bytes": 16383},
        {"max_frame_bytes": 2**24},
        {"stream_window_bytes": -1},
        {"stream_window_bytes": 2**31},
        {"connection_window_bytes": 65534},
        {"connection_window_bytes": 2**31},
    ],
)
def test_a_configuration_outside_the_protocol_is_refused(values):
    with pytest.raises(LocalProtocolError):
        Config(**values)


def test_ping_both_ways():
    server = Server()
    server.connection.ping(b"12345678")
    assert server.sent() == [(PING, 0, 0, b"12345678")]
    server.receive(frame(PING, ACK, 0, b"12345678") + frame(PING, 0, 0, b"abcdefgh"))
    assert server.sent() == [(PING, ACK, 0, b"abcdefgh")]
    for payload in (b"short", b"shutdown"):
        with pytest.raises(LocalProtocolError):
            server.connection.ping(payload)


def test_shutdown_in_two_steps():
    server = Server()
    server.receive(headers(1))
    server.connection.begin_shutdown()
    assert server.sent() == [(GOAWAY, 0, 0, u32(2**31 - 1, 0)), SHUTDOWN_PING]
    server.receive(headers(3))  # was on its way
    server.receive(frame(PING, ACK, 0, b"shutdown"))
    assert server.sent() == [(GOAWAY, 0, 0, u32(3, 0))]
    server.receive(headers(5) + frame(PING, 0, 0, bytes(8)))
    assert server.sent() == [(PING, ACK, 0, bytes(8))]
    assert sorted(server.calls) == [1, 3]
    for stream_id in (1, 3):
        assert not server.connection.is_finished
        server.stream(stream_id).respond(HEAD, b"", TRAILERS)
    assert not server.connection.is_finished
    server.output()
    assert server.connection.is_finished


def test_shutdown_of_a_client_that_does_not_answer():
    server = Server()
    server.receive(headers(1))
    server.connection.begin_shutdown()
    server.connection.finish_shutdown()
    server.connection.begin_shutdown()
    server.connection.finish_shutdown()
    assert server.sent() == [(GOAWAY, 0, 0, u32(2**31 - 1, 0)), SHUTDOWN_PING, (GOAWAY, 0, 0, u32(1, 0))]
    server.receive(headers(3, flags=END_HEADERS) + frame(DATA, 0, 3, b"x") + headers(3, ("a", "b")))
    server.connection.close(ErrorCode.NO_ERROR, b"too late")
    assert server.sent() == [(GOAWAY, 0, 0, u32(1, 0) + b"too late")]
    assert sorted(server.calls) == [1]


def test_a_dropped_request_keeps_the_header_table_right():
    server = Server()
    server.connection.finish_shutdown()
    added = b"\x40\x01a\x01b"
    server.receive(frame(1, 5, 1, added) + frame(1, 5, 3, b"\xbe"))
    assert server.events == []


def test_the_client_announces_its_end():
    server = Server()
    server.receive(headers(1) + frame(GOAWAY, 0, 0, u32(0, 2) + b"bye"))
    server.stream(1).respond(HEAD, b"", TRAILERS)
    assert [sent.stream_id for sent in server.sent()] == [1, 1, 1]


def test_lost_transport():
    server = Server()
    server.receive(headers(1) + headers(3))
    server.stream(1).send_headers(HEAD)
    server.stream(1).send_data(memoryview(bytes(100)))
    server.connection.connection_lost()
    assert server.events[2:] == [("reset", 1, ErrorCode.CANCEL, None), ("reset", 3, ErrorCode.CANCEL, None)]
    assert server.connection.waiting_bytes == 0
    server.receive(headers(5))
    assert len(server.events) == 4
    server.connection.connection_lost()
    assert len(server.events) == 4


def test_streams_learn_why_their_connection_has_ended():
    server = Server()
    server.receive(headers(1))
    with pytest.raises(RemoteProtocolError):
        server.receive(frame(PING, 0, 1, bytes(8)) + headers(3))
    server.connection.connection_lost()
    assert server.events == [("request", 1, b"/a", True), ("reset", 1, ErrorCode.PROTOCOL_ERROR, "6.7")]


def test_nothing_is_received_after_close():
    server = Server()
    server.on_request = lambda stream, head, ended: (
        server.connection.close() or Server.on_request(server, stream, head, ended)
    )
    server.receive(headers(1) + headers(3) + frame(PING, 0, 0, bytes(8)) + b"\0\0")
    server.receive(frame(PING, 0, 0, bytes(8)))
    assert server.sent() == [(GOAWAY, 0, 0, u32(1, 0))]
    assert sorted(server.calls) == [1]
    assert server.connection.is_finished


def test_a_reset_by_the_client_is_heard_once():
    server = Server()
    server.receive(headers(1) + 2 * frame(RST_STREAM, 0, 1, u32(0x99)))
    assert server.events == [("request", 1, b"/a", True), ("reset", 1, 0x99, None)]


def test_data_that_waits_does_not_follow_the_end():
    server = Server()
    server.receive(headers(1))
    server.stream(1).send_headers(HEAD)
    server.stream(1).send_data(memoryview(bytes(100)))
    server.connection.close(ErrorCode.INTERNAL_ERROR)
    assert [sent.kind for sent in server.sent()] == [HEADERS, GOAWAY]
    assert server.connection.is_finished
    server.connection.connection_lost()
    assert server.events[-1] == ("reset", 1, ErrorCode.CANCEL, None)


def test_a_receiver_that_fails_leaves_no_stream_behind():
    server = Server()
    server.receive(headers(1))
    server.on_request = lambda stream, head, ended: 1 // 0
    with pytest.raises(ZeroDivisionError):
        server.receive(headers(3))
    server.connection.connection_lost()
    assert server.events[1:] == [("reset", 1, ErrorCode.CANCEL, None)]
