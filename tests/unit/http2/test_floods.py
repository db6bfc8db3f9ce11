"""Each bound on work that makes no progress, reached exactly and then exceeded."""

import hpack
import pytest

from pybackend_http2 import Config, ErrorCode, HeaderBlock, RemoteProtocolError
from tests.support.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    PING,
    POST,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    TRAILERS,
    WINDOW_UPDATE,
    Server,
    block,
    frame,
    headers,
    settings,
    u32,
)

CONFIG = Config(
    max_unproductive_frames=50, max_resets=5, max_unsent_replies=20, max_continuations=3, max_concurrent_streams=4
)

OPEN = headers(1, flags=END_HEADERS)

UNPRODUCTIVE = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "PING acknowledgements": frame(PING, ACK, 0, bytes(8)),
    "SETTINGS": settings(id_4=1),
    "empty SETTINGS": settings(),
    "SETTINGS acknowledgements": frame(SETTINGS, ACK, 0),
    "WINDOW_UPDATE of the connection": frame(WINDOW_UPDATE, 0, 0, u32(1)),
    "WINDOW_UPDATE of a stream": frame(WINDOW_UPDATE, 0, 1, u32(1)),
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)),
    "empty DATA": frame(DATA, 0, 1),
    "DATA of padding": frame(DATA, 8, 1, b"\x01\0"),
    "unknown frames": frame(0x42, 0, 0, b"xy"),
    "GOAWAY": frame(GOAWAY, 0, 0, bytes(8)),
}


def _flood(server, data):
    """Send the same bytes until the connection ends; returns how often they were accepted. The output is taken each
    time."""
    return _flood_with(server, (data for _ in range(10_000)))


def _flood_with(server, pieces):
    accepted = []
    with pytest.raises(RemoteProtocolError) as caught:
        accepted.extend(_accepted(server, pieces))
    assert (caught.value.code, caught.value.section) == (ErrorCode.ENHANCE_YOUR_CALM, "10.5")
    assert server.sent()[-1].payload[4:] == u32(ErrorCode.ENHANCE_YOUR_CALM) + str(caught.value).encode()
    return len(accepted)


def _accepted(server, pieces):
    for piece in pieces:
        server.receive(piece)
        server.output()
        yield piece


def _budget(server):
    """How many unproductive frames the server still accepts."""
    return _flood(server, UNPRODUCTIVE["PRIORITY"])


@pytest.mark.parametrize("flood", UNPRODUCTIVE.values(), ids=UNPRODUCTIVE)
def test_frames_without_progress_are_counted(flood):
    server = Server(CONFIG)
    server.receive(OPEN)
    assert _flood(server, flood) == 50 - 1  # one was the client's first SETTINGS


def test_bytewise_unknown_frames_are_counted_too():
    server = Server(CONFIG)
    server.receive(OPEN)
    with pytest.raises(RemoteProtocolError):
        server.receive(UNPRODUCTIVE["unknown frames"] * 50, bytewise=True)


def test_a_long_unknown_frame_is_skipped_without_memory():
    server = Server(Config(max_frame_bytes=2**20))
    server.receive(frame(0x42, 0, 0, bytes(2**20))[:-1])
    server.receive(b"\0" + headers(1))
    assert server.events == [("request", 1, b"/a", True)]


def test_rapid_reset():
    server = Server(CONFIG)
    for number in range(5):
        stream_id = 1 + 2 * number
        server.receive(headers(stream_id) + frame(RST_STREAM, 0, stream_id, u32(8)))
    server.receive(headers(11))
    with pytest.raises(RemoteProtocolError, match="more than 5 streams were reset") as caught:
        server.receive(frame(RST_STREAM, 0, 11, u32(8)))
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_resets_that_the_client_provokes_count_too():
    server = Server(CONFIG)
    numbers = range(1, 101, 2)
    faults = (headers(number, flags=END_HEADERS) + frame(WINDOW_UPDATE, 0, number, u32(0)) for number in numbers)
    assert _flood_with(server, faults) == 5


def test_resets_by_the_user_count_for_nothing():
    server = Server(CONFIG)
    for stream_id in range(1, 101, 2):
        server.receive(headers(stream_id))
        server.stream(stream_id).reset()
        assert server.sent() == [(RST_STREAM, 0, stream_id, u32(ErrorCode.CANCEL))]


def test_finished_requests_pay_for_resets():
    server = Server(CONFIG)
    for number in range(50):
        reset, served = 1 + 4 * number, 3 + 4 * number
        server.receive(headers(reset) + frame(RST_STREAM, 0, reset, u32(8)) + headers(served))
        server.stream(served).respond(HEAD, b"", TRAILERS)
        server.output()
    assert server.connection.streams == {}


def test_finished_requests_pay_for_frames():
    server = Server(CONFIG)
    for stream_id in range(1, 401, 2):
        server.receive(headers(stream_id) + 16 * UNPRODUCTIVE["PING"])
        server.stream(stream_id).respond(HEAD, b"", TRAILERS)
        server.output()


@pytest.mark.parametrize("bytewise", [False, True])
def test_data_pays_for_frames(bytewise):
    server = Server(CONFIG)
    server.receive(OPEN)
    for _ in range(200):
        server.receive(frame(DATA, 0, 1, b"x") + UNPRODUCTIVE["PING"], bytewise=bytewise)
        server.output()


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_sent_data_pays_for_the_window_updates_that_follow(kind):
    server = Server(CONFIG)
    server.receive(headers(1))
    server.stream(1).send_headers(HEAD)
    server.output()
    for _ in range(100):
        server.stream(1).send_data(kind(bytes(100)))
        server.output()
        server.receive(2 * frame(WINDOW_UPDATE, 0, 1, u32(50)) + 2 * frame(WINDOW_UPDATE, 0, 0, u32(50)))


def test_time_pays_for_frames_and_resets():
    server = Server(
        Config(max_unproductive_frames=50, max_resets=5, forgiven_frames_per_second=10, forgiven_resets_per_second=2)
    )
    for _ in range(100):
        server.receive(10 * UNPRODUCTIVE["PRIORITY"])
        server.connection.time_passed(1)
    for number in range(100):
        stream_id = 1 + 2 * number
        server.receive(headers(stream_id) + frame(RST_STREAM, 0, stream_id, u32(8)))
        server.connection.time_passed(0.5)
    server.connection.time_passed(100)
    assert _budget(server) == 50


@pytest.mark.parametrize("flood", ["PING", "SETTINGS"])
def test_replies_that_nobody_reads_are_counted(flood):
    server = Server(CONFIG)
    server.receive(20 * UNPRODUCTIVE[flood])
    with pytest.raises(RemoteProtocolError, match="more than 20 replies wait because the peer does not read"):
        server.receive(UNPRODUCTIVE[flood])


def test_continuations_are_counted():
    server = Server(CONFIG)
    server.receive(headers(1, flags=END_STREAM) + 3 * frame(CONTINUATION, 0, 1))
    with pytest.raises(RemoteProtocolError, match="more than 3 CONTINUATION frames"):
        server.receive(frame(CONTINUATION, 0, 1))


def test_continuations_of_a_long_block_are_refused_before_they_are_collected():
    server = Server(Config(max_header_list_bytes=20_000, max_frame_bytes=2**20))
    server.receive(headers(1, flags=END_STREAM) + frame(CONTINUATION, 0, 1, bytes(39_000)))
    with pytest.raises(RemoteProtocolError, match="a header block exceeds 40000 bytes"):
        server.receive(frame(CONTINUATION, 0, 1, bytes(1000)))
    server = Server(Config(max_header_list_bytes=20_000, max_frame_bytes=2**20))
    with pytest.raises(RemoteProtocolError, match="a header block exceeds 40000 bytes"):
        server.receive(frame(HEADERS, 4, 1, bytes(2**20))[:9])


@pytest.mark.parametrize(("kind", "what"), [(SETTINGS, "SETTINGS"), (GOAWAY, "GOAWAY"), (PRIORITY, "PRIORITY")])
def test_long_control_frames_are_refused_before_they_are_collected(kind, what):
    server = Server(Config(max_frame_bytes=2**20))
    with pytest.raises(RemoteProtocolError, match=f"a {what} frame has 600000 bytes") as caught:
        server.receive(frame(kind, 0, 0, bytes(600_000))[:9])
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_streams_are_counted():
    server = Server(CONFIG)
    for stream_id in (1, 3, 5, 7, 9, 11):
        server.receive(headers(stream_id))
    refused = [(RST_STREAM, 0, stream_id, u32(ErrorCode.REFUSED_STREAM)) for stream_id in (9, 11)]
    assert server.sent() == refused
    assert sorted(server.calls) == [1, 3, 5, 7]
    server.stream(3).respond(HEAD, b"", TRAILERS)
    server.receive(headers(13))
    assert sorted(server.calls) == [1, 3, 5, 7, 13]


def test_refused_streams_are_counted():
    server = Server(CONFIG)
    assert _flood_with(server, (headers(number) for number in range(1, 201, 2))) == 4 + 50 - 1


@pytest.mark.parametrize(
    "fields",
    [
        [("x", "y" * 17_000)],
        [("x" * 17_000, "y")],
        [(f"x{number}", "") for number in range(130)],
    ],
    ids=["a long value", "a long name", "many fields"],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_large_header_section_is_answered_with_431(fields, ended):
    server = Server()
    encoded = hpack.Encoder().encode([(name, value, True) for name, value in [*POST, *fields]])
    server.receive(frame(HEADERS, END_HEADERS | (END_STREAM if ended else 0), 1, encoded))
    answer, *rest = server.sent()
    assert answer == (HEADERS, END_HEADERS | END_STREAM, 1, HeaderBlock([(b":status", b"431")]).encoded)
    assert rest == ([] if ended else [(RST_STREAM, 0, 1, u32(ErrorCode.NO_ERROR))])
    assert server.events == []
    server.receive(headers(3))
    assert server.events == [("request", 3, b"/a", True)]


def test_a_header_bomb_ends_the_connection():
    """One entry of 4,000 bytes in the dynamic table, and hundreds of references to it."""
    server = Server()
    entry = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000
    bomb = block(*POST) + entry + b"\xbe" * 500
    with pytest.raises(
        RemoteProtocolError, match="a header section exceeds 2 times the bound of 16384 bytes"
    ) as caught:
        server.receive(frame(HEADERS, 5, 1, bomb))
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_window_that_never_opens_is_reported():
    server = Server()
    server.receive(settings(id_4=10) + headers(1) + headers(3) + headers(5))
    for stream_id in (1, 3, 5):
        server.stream(stream_id).send_headers(HEAD)
        server.stream(stream_id).send_data(bytes(100))
    server.output()
    assert server.connection.stalled_streams() == []
    server.receive(frame(WINDOW_UPDATE, 0, 3, u32(1)) + frame(WINDOW_UPDATE, 0, 5, u32(1000)))
    server.output()
    assert server.connection.stalled_streams() == [server.stream(1)]
    assert server.connection.stalled_streams() == [server.stream(1), server.stream(3)]
    assert server.connection.waiting_bytes == 90 + 89


def test_frames_that_the_user_causes_count_for_nothing():
    """Windows that open and streams that the user resets, while the client reads nothing."""
    server = Server(Config(max_unsent_replies=5, stream_window_bytes=2**20))
    server.receive(headers(1, flags=END_HEADERS))
    for stream_id in range(3, 43, 2):
        server.receive(frame(DATA, 0, 1, bytes(60_000)) + headers(stream_id))
        server.stream(stream_id).reset()
    assert {sent.kind for sent in server.sent()} == {WINDOW_UPDATE, RST_STREAM}
