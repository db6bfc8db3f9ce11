"""Order and fairness of output, windows, and views that are not copied."""

import pytest

from tests.support.http2 import (
    DATA,
    HEAD,
    HEADERS,
    SETTINGS,
    TRAILERS,
    WINDOW_UPDATE,
    Server,
    frame,
    frames,
    headers,
    settings,
    u32,
)

OPEN_CONNECTION = frame(WINDOW_UPDATE, 0, 0, u32(2**24))


def _server(streams=3, window=2**20):
    server = Server()
    server.receive(OPEN_CONNECTION + settings(id_4=window) + b"".join(headers(1 + 2 * n) for n in range(streams)))
    for stream_id in server.calls:
        server.stream(stream_id).send_headers(HEAD)
    server.output()
    return server


def _order(server, limit=2**30):
    return [(sent.stream_id, len(sent.payload)) for sent in frames(server.output(limit)) if sent.kind == DATA]


def test_streams_take_turns():
    server = _server()
    for stream_id, size in ((1, 50_000), (3, 20_000), (5, 16_384)):
        server.stream(stream_id).send_data(memoryview(bytes(size)))
    assert _order(server) == [(1, 16384), (3, 16384), (5, 16384), (1, 16384), (3, 3616), (1, 16384), (1, 848)]
    assert [event for event in server.events if event[0] == "drained"] == [
        ("drained", 5),
        ("drained", 3),
        ("drained", 1),
    ]


def test_turns_go_on_where_a_limit_ended_them():
    server = _server()
    for stream_id in (1, 3, 5):
        server.stream(stream_id).send_data(memoryview(bytes(40_000)))
    assert [_order(server, 20_000) for _ in range(5)] == [
        [(1, 16384), (3, 16384)],
        [(5, 16384), (1, 16384)],
        [(3, 16384), (5, 16384)],
        [(1, 7232), (3, 7232), (5, 7232)],
        [],
    ]


def test_a_small_answer_overtakes_a_large_one():
    server = _server()
    server.stream(1).send_data(memoryview(bytes(500_000)))
    server.output(20_000)
    server.stream(3).send_data(b"small")
    assert (3, 5) in _order(server, 20_000)


def test_a_shut_window_stops_its_stream_only():
    server = _server(window=10)
    server.stream(1).send_data(bytes(30))
    server.stream(3).send_data(bytes(10))
    assert _order(server) == [(1, 10), (3, 10)]
    assert not server.connection.has_output
    server.receive(frame(WINDOW_UPDATE, 0, 1, u32(15)))
    assert server.connection.has_output
    assert _order(server) == [(1, 15)]
    server.receive(settings(id_4=15))
    assert [size for _, size in _order(server)] == [5]


def test_a_window_that_becomes_negative():
    server = _server(window=10)
    server.stream(1).send_data(bytes(30))
    assert _order(server) == [(1, 10)]
    server.receive(settings(id_4=0) + frame(WINDOW_UPDATE, 0, 1, u32(10)))
    assert _order(server) == []
    server.receive(frame(WINDOW_UPDATE, 0, 1, u32(1)))
    assert _order(server) == [(1, 1)]


def test_a_window_that_shrinks_while_its_stream_is_in_line():
    server = _server(window=10)
    server.stream(1).send_data(memoryview(bytes(30)))
    server.receive(settings(id_4=0))
    assert _order(server) == []
    server.receive(settings(id_4=100))
    assert _order(server) == [(1, 30)]


def test_the_connection_window_is_shared_by_all():
    server = Server()
    server.receive(headers(1) + headers(3))
    for stream_id in (1, 3):
        server.stream(stream_id).send_headers(HEAD)
        server.stream(stream_id).send_data(bytes(60_000))
    assert sum(size for _, size in _order(server)) == 65_535
    assert not server.connection.has_output
    assert server.connection.waiting_bytes == 120_000 - 65_535
    server.receive(frame(WINDOW_UPDATE, 0, 0, u32(100_000)))
    assert sum(size for _, size in _order(server)) == 120_000 - 65_535


def test_trailers_pass_a_shut_window():
    server = _server(window=0)
    server.stream(1).send_trailers(TRAILERS)
    assert [sent.kind for sent in server.sent()] == [HEADERS]


def test_views_are_handed_out_uncopied():
    server = _server(1)
    memory = bytearray(20_000)
    assert not server.stream(1).send_data(memoryview(memory))
    pieces = server.connection.take_output()
    memory[:] = b"x" * len(memory)
    assert b"".join(piece for piece in pieces if isinstance(piece, memoryview)) == memory[:16_384]


def test_short_views_are_copied_when_they_are_taken():
    server = _server(1)
    memory = bytearray(100)
    server.stream(1).send_data(memoryview(memory))
    memory[:] = b"x" * 100
    assert server.connection.take_output() == [frame(DATA, 0, 1, b"x" * 100)]


def test_a_view_counts_in_bytes():
    server = _server(1)
    server.stream(1).send_data(memoryview(bytes(range(80))).cast("d"))
    assert server.sent() == [(DATA, 0, 1, bytes(range(80)))]


def test_many_small_answers_do_not_bypass_the_turns_for_ever():
    """Bytes go out at once only up to a limit between two looks at the output."""
    server = _server(1)
    accepted = 0
    while server.stream(1).send_data(bytes(10_000)):
        accepted += 1
    assert accepted == 6
    assert server.connection.waiting_bytes == 10_000


@pytest.mark.parametrize("setting", [{"id_1": 0}, {"id_1": 100}])
def test_a_smaller_dynamic_table_is_confirmed_in_the_next_block(setting):
    server = Server()
    server.receive(settings(**setting) + headers(1) + headers(3))
    server.output()
    for stream_id in (1, 3):
        server.stream(stream_id).respond(HEAD, b"", TRAILERS)
    heads = [sent.payload for sent in server.sent() if sent.kind == HEADERS]
    assert heads == [b"\x20" + HEAD.encoded, TRAILERS.encoded, HEAD.encoded, TRAILERS.encoded]


def test_a_dynamic_table_that_shrank_for_a_moment_is_confirmed():
    server = Server()
    server.receive(frame(SETTINGS, 0, 0, b"\0\x01\0\0\0\0\0\x01\0\0\x10\0") + headers(1))
    server.output()
    server.stream(1).send_headers(HEAD)
    assert server.sent()[0].payload == b"\x20" + HEAD.encoded


def test_the_last_of_repeated_windows_holds():
    server = Server()
    server.receive(headers(1) + frame(SETTINGS, 0, 0, b"\0\x04\0\0\0\x01\0\x04\0\0\0\x05"))
    server.stream(1).send_headers(HEAD)
    server.stream(1).send_data(bytes(100))
    assert _order(server) == [(1, 5)]


def test_nothing_to_take():
    server = Server()
    assert not server.connection.has_output
    assert server.connection.take_output() == []
