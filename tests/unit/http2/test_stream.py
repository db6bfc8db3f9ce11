"""Answers, their order, their misuse, and windows of requests that their user opens."""

import pytest

from pybackend_http2 import Config, ErrorCode, LocalProtocolError, StreamState
from tests.support.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
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

ANSWER = [
    (HEADERS, END_HEADERS, 1, HEAD.encoded),
    (DATA, 0, 1, b"hello"),
    (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS.encoded),
]


@pytest.fixture
def server():
    """Stream 1 waits for its answer."""
    server = Server()
    server.receive(headers(1))
    return server


def test_respond_is_one_piece(server):
    server.stream(1).respond(HEAD, b"hello", TRAILERS)
    assert len(server.connection.take_output()) == 1
    assert server.connection.streams == {}


def test_respond_equals_its_parts(server):
    server.receive(headers(3))
    server.stream(1).respond(HEAD, b"hello", TRAILERS)
    whole = server.sent()
    stream = server.stream(3)
    stream.send_headers(HEAD)
    assert stream.send_data(b"hello")
    stream.send_trailers(TRAILERS)
    assert whole == ANSWER == [sent._replace(stream_id=1) for sent in server.sent()]


def test_respond_with_more_than_the_window_waits(server):
    server.receive(settings(id_4=3) + headers(3))
    server.output()
    server.stream(3).respond(HEAD, b"hello", TRAILERS)
    assert server.sent() == [(HEADERS, END_HEADERS, 3, HEAD.encoded), (DATA, 0, 3, b"hel")]
    server.receive(frame(WINDOW_UPDATE, 0, 3, u32(2)))
    assert server.sent() == [(DATA, 0, 3, b"lo"), (HEADERS, END_HEADERS | END_STREAM, 3, TRAILERS.encoded)]
    assert server.events[-1] == ("drained", 3)


def test_empty_answers_end_the_stream(server):
    server.receive(headers(3))
    server.stream(1).send_headers(HEAD, end=True)
    server.stream(3).send_headers(HEAD)
    server.stream(3).send_data(b"")
    server.stream(3).send_trailers(TRAILERS)
    assert [sent[:3] for sent in server.sent()] == [
        (HEADERS, END_HEADERS | END_STREAM, 1),
        (HEADERS, END_HEADERS, 3),
        (HEADERS, END_HEADERS | END_STREAM, 3),
    ]
    assert server.connection.streams == {}


def test_the_end_waits_for_data_that_waits(server):
    server.receive(settings(id_4=3) + headers(3))
    server.output()
    server.stream(3).send_headers(HEAD)
    assert not server.stream(3).send_data(b"hell")
    server.output()
    server.stream(3).send_trailers(TRAILERS)
    assert server.stream(3).state == StreamState.CLOSED
    assert sorted(server.connection.streams) == [1, 3]
    server.receive(frame(WINDOW_UPDATE, 0, 3, u32(20)))
    assert server.sent() == [(DATA, 0, 3, b"l"), (HEADERS, END_HEADERS | END_STREAM, 3, TRAILERS.encoded)]
    assert sorted(server.connection.streams) == [1]


def _begin(stream):
    stream.send_headers(HEAD)


@pytest.mark.parametrize(
    ("before", "misuse"),
    [
        ([], lambda stream: stream.send_data(b"x")),
        ([], lambda stream: stream.send_trailers(TRAILERS)),
        ([_begin], lambda stream: stream.send_headers(HEAD)),
        ([_begin], lambda stream: stream.respond(HEAD, b"", TRAILERS)),
        ([_begin, lambda stream: stream.send_trailers(TRAILERS)], lambda stream: stream.send_data(b"x")),
        ([_begin, lambda stream: stream.send_trailers(TRAILERS)], lambda stream: stream.send_trailers(TRAILERS)),
        ([_begin, lambda stream: stream.send_trailers(TRAILERS)], lambda stream: stream.send_headers(HEAD)),
        ([], lambda stream: stream.give_back(1)),
    ],
    ids=[
        "data first",
        "trailers first",
        "two heads",
        "respond after a head",
        "data after trailers",
        "trailers after the end",
        "a head after the end",
        "bytes given back that never came",
    ],
)
def test_misuse_is_refused(before, misuse):
    server = Server()
    server.receive(headers(1, flags=END_HEADERS))  # the request goes on, so the stream exists whatever the answer does
    stream = server.stream(1)
    for step in before:
        step(stream)
    server.output()
    with pytest.raises(LocalProtocolError):
        misuse(stream)
    assert not server.connection.has_output


@pytest.mark.parametrize("end", [frame(RST_STREAM, 0, 1, u32(8)), None], ids=["by the client", "by the user"])
def test_after_a_reset_nothing_is_sent(server, end):
    stream = server.stream(1)
    stream.send_headers(HEAD)
    stream.send_data(memoryview(b"x" * 10_000))
    if end is None:
        stream.reset(ErrorCode.INTERNAL_ERROR)
    else:
        server.receive(end)
    assert DATA not in [sent.kind for sent in server.sent()]
    assert server.connection.waiting_bytes == 0
    stream.send_headers(HEAD)
    assert stream.send_data(b"x")
    stream.send_trailers(TRAILERS)
    stream.reset()
    assert not server.connection.has_output
    heard = [event for event in server.events if event[0] in {"reset", "drained"}]
    assert heard == ([] if end is None else [("reset", 1, 8, None)])


def test_frames_that_cross_a_reset_are_dropped_and_given_back():
    server = Server(Config(connection_window_bytes=65535), gives_back=False)
    server.receive(headers(1, flags=END_HEADERS) + frame(DATA, 0, 1, bytes(10)))
    server.stream(1).reset()
    server.output()
    server.receive(4 * frame(DATA, 0, 1, bytes(10_000)) + headers(1, ("late", "trailer")))
    assert [(sent.kind, sent.stream_id) for sent in server.sent()] == [(WINDOW_UPDATE, 0)]
    assert len(server.events) == 2


def test_a_stream_may_be_reset_inside_its_own_data():
    server = Server()
    server.receive(headers(1, flags=END_HEADERS))
    call = server.calls[1]
    call.on_data = lambda payload, ended: call.stream.reset()
    server.receive(frame(DATA, 0, 1, bytes(100))[:50])
    server.receive(bytes(59) + headers(3))
    assert server.events == [("request", 1, b"/a", False), ("request", 3, b"/a", True)]


def test_windows_open_when_half_of_them_was_given_back():
    server = Server(Config(stream_window_bytes=100_000, connection_window_bytes=400_000), gives_back=False)
    server.receive(headers(1, flags=END_HEADERS) + 6 * frame(DATA, 0, 1, bytes(16_000)))
    stream = server.stream(1)
    stream.give_back(49_999)
    assert server.sent() == []
    stream.give_back(1)
    assert server.sent() == [(WINDOW_UPDATE, 0, 1, u32(50_000))]


def test_the_connection_is_given_back_bytes_of_streams_that_have_ended():
    server = Server(Config(connection_window_bytes=65535), gives_back=False)
    server.receive(
        headers(1, flags=END_HEADERS) + 4 * frame(DATA, 0, 1, bytes(10_000)) + frame(RST_STREAM, 0, 1, u32(8))
    )
    server.stream(1).give_back(40_000)
    assert server.sent() == [(WINDOW_UPDATE, 0, 0, u32(40_000))]


def test_a_slow_user_holds_back_the_client():
    """The client has used its window, and nothing opens it until bytes are given back."""
    server = Server(Config(stream_window_bytes=65535), gives_back=False)
    server.receive(headers(1, flags=END_HEADERS) + 4 * frame(DATA, 0, 1, bytes(16_383)) + frame(DATA, 0, 1, bytes(3)))
    assert server.sent() == []
    server.receive(frame(DATA, 0, 1, b"x"))
    assert server.sent() == [(RST_STREAM, 0, 1, u32(ErrorCode.FLOW_CONTROL_ERROR))]


def test_a_window_that_shrinks_is_opened_for_bytes_that_were_given_back_before():
    """The client has sent a whole default window before it knew of ours, and all of it has been given back."""
    server = Server(Config(stream_window_bytes=20_000), greet=False)
    body = 4 * frame(DATA, 0, 1, bytes(16_383)) + frame(DATA, 0, 1, bytes(3))
    server.receive(PREFACE + settings() + headers(1, flags=END_HEADERS) + body)
    server.receive(frame(SETTINGS, ACK, 0))
    opened = sum(int.from_bytes(sent.payload, "big") for sent in server.sent() if sent[:3] == (WINDOW_UPDATE, 0, 1))
    window_of_client = 65_535 - 65_535 - (65_535 - 20_000) + opened
    assert window_of_client > 10_000


def test_smaller_settings_hold_from_their_acknowledgement_on():
    server = Server(Config(stream_window_bytes=10), greet=False, gives_back=False)
    server.receive(PREFACE + settings() + headers(1, flags=END_HEADERS) + frame(DATA, 0, 1, bytes(11)))
    assert [sent.kind for sent in server.sent()] == [SETTINGS, WINDOW_UPDATE, SETTINGS]
    server.receive(frame(SETTINGS, ACK, 0) + frame(DATA, 0, 1, b"x"))
    assert server.sent() == [(RST_STREAM, 0, 1, u32(ErrorCode.FLOW_CONTROL_ERROR))]


def test_states():
    server = Server()
    server.receive(headers(1, flags=END_HEADERS) + headers(3, flags=END_HEADERS))
    one, three = server.stream(1), server.stream(3)
    assert one.state == StreamState.OPEN
    server.receive(frame(DATA, END_STREAM, 1))
    assert one.state == StreamState.HALF_CLOSED_REMOTE
    three.send_headers(HEAD, end=True)
    assert three.state == StreamState.HALF_CLOSED_LOCAL
    one.send_headers(HEAD, end=True)
    server.receive(headers(3, ("a", "b")))
    assert (one.state, three.state) == (StreamState.CLOSED, StreamState.CLOSED)
    assert server.connection.streams == {}
