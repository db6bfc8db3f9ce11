"""Bytes that are cut anywhere, and payloads that go where their user wants them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend_http2 import Config, LocalProtocolError, RemoteProtocolError
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    POST,
    PREFACE,
    RST_STREAM,
    Server,
    block,
    frame,
    headers,
    u32,
)
from tests.support.http2 import settings as settings_frame

LARGE = Config(max_frame_bytes=2**20, stream_window_bytes=2**24, connection_window_bytes=2**24)

EVERYTHING = b"".join(
    [
        PREFACE,
        settings_frame(id_3=100),
        headers(1, flags=END_HEADERS),
        frame(DATA, 0, 1, b"a" * 100),
        frame(DATA, PADDED, 1, b"\x05" + b"b" * 30 + bytes(5)),
        frame(PING, 0, 0, b"12345678"),
        frame(DATA, PADDED, 1, b"\x03" + bytes(3)),
        headers(3, flags=0),
        frame(CONTINUATION, END_HEADERS, 3, block(("x", "y"))),
        frame(0x55, 0xFF, 3, b"unknown"),
        frame(DATA, PADDED | END_STREAM, 3, b"\x02" + b"c" * 9 + bytes(2)),
        frame(DATA, END_STREAM, 1),
        headers(5),
        frame(RST_STREAM, 0, 5, u32(8)),
    ]
)


def _heard(events):
    """The events, with the pieces of a body joined."""
    joined = []
    for event in events:
        if event[0] == "data" and (before := [one for one in joined if one[:2] == event[:2]]):
            joined[joined.index(before[0])] = (*event[:2], before[0][2] + event[2], event[3])
        else:
            joined.append(event)
    return joined


WHOLE = [
    ("request", 1, b"/a", False),
    ("data", 1, b"a" * 100 + b"b" * 30, True),
    ("request", 3, b"/a", False),
    ("data", 3, b"c" * 9, True),
    ("request", 5, b"/a", True),
    ("reset", 5, 8, None),
]


@given(cuts=st.lists(st.integers(1, len(EVERYTHING) - 1)), kind=st.sampled_from([bytes, bytearray, memoryview]))
def test_frames_may_be_cut_anywhere(cuts, kind):
    server = Server(greet=False)
    edges = [0, *sorted(cuts), len(EVERYTHING)]
    for start, stop in itertools.pairwise(edges):
        server.receive(kind(EVERYTHING[start:stop]))
    assert _heard(server.events) == WHOLE


@given(
    noise=st.binary(max_size=300),
    frames=st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 255), st.integers(0, 7), st.binary(max_size=20)), max_size=10
    ),
)
@settings(max_examples=300)
def test_noise_is_refused_and_never_breaks_anything(noise, frames):
    server = Server()
    data = b"".join(frame(*one) for one in frames) + noise
    try:
        server.receive(headers(1, flags=END_HEADERS) + data)
    except RemoteProtocolError:
        server.output()
        assert server.connection.is_finished
    server.connection.connection_lost()
    assert server.connection.streams == {}


@given(noise=st.binary(max_size=100))
@settings(max_examples=300)
def test_header_blocks_of_noise_are_refused(noise):
    server = Server()
    try:
        server.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(*POST) + noise))
    except RemoteProtocolError:
        server.output()
        assert server.connection.is_finished
    else:
        assert len(server.calls) == 1 or server.sent()[0].kind in {RST_STREAM, HEADERS}


def test_a_large_payload_is_delivered_as_it_arrives():
    server = Server(LARGE)
    server.receive(headers(1, flags=END_HEADERS))
    message = frame(DATA, END_STREAM, 1, bytes(2**20))
    for start in range(0, len(message), 100_000):
        server.receive(message[start : start + 100_000])
        assert len(server.calls[1].body) == min(len(message), start + 100_000) - 9
    assert server.calls[1].ended


def test_large_payloads_are_views_of_the_received_bytes():
    server = Server(LARGE)
    server.receive(headers(1, flags=END_HEADERS))
    delivered = []
    server.calls[1].on_data = lambda payload, ended: delivered.append(payload)
    whole = frame(DATA, 0, 1, bytes(10_000))
    server.receive(whole + frame(DATA, 0, 1, b"short") + whole[:5000])
    first, second, third = delivered
    assert isinstance(first, memoryview)
    assert first.obj == whole + frame(DATA, 0, 1, b"short") + whole[:5000]
    assert second == b"short"
    assert isinstance(second, bytes)
    assert isinstance(third, memoryview)


class TestPayloadStored:
    """The user reads a payload from the socket to a place of its choice."""

    @staticmethod
    def _server(flags=0, padding=0, **fields):
        server = Server(LARGE)
        extra = [(name.replace("_", "-"), value) for name, value in fields.items()]
        server.receive(headers(1, *POST, *extra, flags=END_HEADERS))
        padded = (PADDED, bytes([padding]), bytes(padding)) if padding else (0, b"", b"")
        data = frame(DATA, flags | padded[0], 1, padded[1] + bytes(100_000) + padded[2])
        server.receive(data[: 9 + len(padded[1]) + 1000])
        return server

    def test_rest_of_a_frame(self):
        server = self._server()
        stream = server.stream(1)
        assert server.connection.expected_payload == (stream, 99_000)
        server.connection.payload_stored(90_000)
        assert server.connection.expected_payload == (stream, 9_000)
        server.connection.payload_stored(9_000)
        assert server.connection.expected_payload is None
        stream.give_back(99_000)
        server.receive(frame(DATA, END_STREAM, 1, b"end"))
        assert [event[2:] for event in server.events[1:]] == [(bytes(1000), False), (b"end", True)]

    @pytest.mark.parametrize("padding", [0, 7])
    def test_end_of_the_request(self, padding):
        server = self._server(END_STREAM, padding)
        server.connection.payload_stored(99_000)
        server.receive(bytes(padding) + headers(3))
        assert [event[0] for event in server.events] == ["request", "data", "data", "request"]
        assert server.events[2] == ("data", 1, b"", True)

    def test_more_than_expected_is_refused(self):
        server = self._server()
        with pytest.raises(LocalProtocolError):
            server.connection.payload_stored(99_001)
        with pytest.raises(LocalProtocolError):
            Server().connection.payload_stored(1)

    def test_content_length_counts_it(self):
        right = self._server(END_STREAM, content_length="100000")
        right.connection.payload_stored(99_000)
        assert right.calls[1].ended
        wrong = self._server(END_STREAM, content_length="100001")
        wrong.connection.payload_stored(99_000)
        assert wrong.events[-1] == ("reset", 1, 1, "8.1.1")

    def test_nothing_is_expected_of_a_stream_that_was_reset(self):
        server = self._server()
        server.stream(1).reset()
        assert server.connection.expected_payload is None
        server.receive(bytes(99_000) + headers(3))
        assert server.events[-1] == ("request", 3, b"/a", True)
