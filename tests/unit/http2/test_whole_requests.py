"""Whole requests of known heads have the effect that their frames have one by one."""

import pytest

from pybackend_http2 import AnswerForm, Config, HeaderBlock, RemoteProtocolError
from tests.support import http2
from tests.support.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, Server

BLOCK = http2.block(*http2.POST)


class WholeServer(Server):
    """Notes whole requests as if their frames had come one by one.

    Attributes:
        takes: heads take whole requests.
        whole: streams whose request came whole.
        declines: so many are declined.
    """

    def __init__(self, config=None, *, takes=True):
        self.takes = takes
        self.whole = []
        self.declines = 0
        super().__init__(config)

    def on_request(self, stream, head, ended, /):
        head.takes_whole = self.takes and head.content_length is None
        return super().on_request(stream, head, ended)

    def on_whole_request(self, stream, head, data, start, stop, /):
        if self.declines:
            self.declines -= 1
            return None
        self.whole.append(stream.id)
        call = super().on_request(stream, head, False)
        call.body += data[start:stop]
        call.ended = True
        self.events.append(("data", stream.id, data[start:stop], True))
        return call

    def respond(self):
        """Answer all that waits for an answer."""
        for stream in list(self.connection.streams.values()):
            if stream.sending:
                stream.respond(http2.HEAD, b"answer", http2.TRAILERS)


def head(stream_id, block=BLOCK, flags=END_HEADERS):
    return http2.frame(HEADERS, flags, stream_id, block)


def body(stream_id, size=20, flags=END_STREAM):
    return http2.frame(DATA, flags, stream_id, bytes(size))


def update(stream_id, more):
    return http2.frame(WINDOW_UPDATE, 0, stream_id, http2.u32(more))


def call(stream_id, *between, size=20):
    return head(stream_id) + b"".join(between) + body(stream_id, size)


def like_grpc(stream_id, size=20):
    return call(stream_id, update(stream_id, 5), size=size) + update(0, 93)


def state(server):
    connection = server.connection
    return (
        server.events,
        server.output(),
        connection.unreturned_bytes,
        connection.answered_mark,
        {number: (stream.state, stream.send_window) for number, stream in connection.streams.items()},
    )


def outcome(server, data):
    """What the server knows and sends after these bytes, and after it has answered every call."""
    try:
        server.receive(data)
    except RemoteProtocolError as error:
        return str(error), state(server)
    before = state(server)
    server.respond()
    return before, state(server)


GREETINGS = {"a known head": [call(5)], "a known kind": [call(1), call(3), call(5)]}

CONFIG = Config(stream_window_bytes=150, connection_window_bytes=65_535, max_concurrent_streams=4)


def greeted(greeting, **options):
    server = WholeServer(CONFIG, **options)
    for each in greeting:
        server.receive(each)
        server.respond()
    server.output()
    server.whole.clear()
    return server


CASES = {
    "plain": (call(7), [7]),
    "several": (call(7) + call(9) + call(11, size=7) + call(13), [7, 9, 11, 13]),
    "like gRPC": (like_grpc(7) + like_grpc(9) + like_grpc(11) + like_grpc(13, 99), [7, 9, 11, 13]),
    "another kind and back": (call(7) + like_grpc(9) + call(11) + call(13), [7, 9, 11, 13]),
    "a gap": (call(9) + call(11), [11]),
    "a number that is not odd": (call(8), []),
    "an old number": (call(5), []),
    "the same number": (call(7) + call(7), [7]),
    "a reserved bit": (http2.frame(HEADERS, END_HEADERS, 7 | 1 << 31, BLOCK) + body(7), []),
    "no body": (head(7, flags=END_HEADERS | END_STREAM), []),
    "an empty body": (call(7, size=0), []),
    "a body in two frames": (head(7) + body(7, flags=0) + body(7), []),
    "mixed frames": (head(7) + head(9) + body(9) + body(7) + call(11), [11]),
    "a body that never ends": (head(7) + body(7, flags=0) + call(9), [9]),
    "padding": (head(7) + http2.frame(DATA, END_STREAM | http2.PADDED, 7, b"\x01ab\0"), []),
    "priority": (http2.frame(HEADERS, END_HEADERS | http2.WITH_PRIORITY, 7, bytes(5) + BLOCK) + body(7), []),
    "continuation": (
        http2.frame(HEADERS, 0, 7, BLOCK[:9]) + http2.frame(http2.CONTINUATION, END_HEADERS, 7, BLOCK[9:]),
        [],
    ),
    "a broken header block": (http2.frame(HEADERS, 0, 7, BLOCK[:9]) + call(9), []),
    "reset at once": (call(7) + http2.frame(RST_STREAM, 0, 7, http2.u32(8)) + call(9), [7, 9]),
    "a ping between": (call(7) + http2.frame(http2.PING, 0, 0, b"12345678") + call(9), [7, 9]),
    "a window of zero more": (call(7, update(7, 0)), []),
    "a window too large": (call(7, update(7, 2**31 - 1)), []),
    "another stream's window": (call(7, update(5, 9)), []),
    "two windows": (call(7, update(7, 9), update(7, 8)), []),
    "the connection's window by zero": (call(7) + update(0, 0), [7]),
    "the connection's window too large": (call(7) + update(0, 2**31 - 1), [7]),
    "more than the stream's window": (call(7, size=200), []),
    "too many at a time": (b"".join(call(number) for number in range(7, 17, 2)), [7, 9, 11, 13]),
    "settings": (http2.settings(id_4=3) + call(7) + like_grpc(9), [7, 9]),
    "the largest window": (http2.settings(id_4=2**31 - 5) + like_grpc(7), []),
    "cut in the head": (call(7) + head(9)[:11], [7]),
    "cut in the body": (call(7) + call(9)[:-3], [7]),
    "cut in a window": (like_grpc(7) + call(9, update(9, 4))[: len(head(9)) + 11], [7]),
    "cut behind the body": (like_grpc(7)[:-6], [7]),
    "unknown frames": (http2.frame(0x77, 0, 0, b"x" * 9) + call(7), [7]),
    "a long head": (head(7, BLOCK + http2.block(("a", "b" * 90))) + body(7), []),
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
@pytest.mark.parametrize(("data", "whole"), CASES.values(), ids=CASES)
def test_the_effect_is_that_of_the_frames(data, whole, greeting):
    in_one, by_frames = greeted(greeting), greeted(greeting, takes=False)
    assert outcome(in_one, data) == outcome(by_frames, data)
    assert (in_one.whole, by_frames.whole) == (whole, [])


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_only_whole_requests_of_an_open_connection_are_taken(greeting):
    server = greeted(greeting)
    server.receive(memoryview(call(7)))
    server.receive(call(9), bytewise=True)
    assert not server.whole
    server.declines = 1
    server.receive(call(11) + call(13))
    assert server.whole == [13]  # the ordinary way of 11 has set the head's mark again
    assert [event[1] for event in server.events if event[0] == "data" and event[3]][-4:] == [7, 9, 11, 13]
    server.respond()
    server.connection.finish_shutdown()
    server.receive(call(15))
    assert 15 not in server.calls
    server.connection.close()
    server.receive(call(17))
    assert server.whole == [13]


def test_a_head_means_the_same_only_while_the_table_does():
    def indexed(stream_id, path=b"", more=b""):
        field = b"\x44" + bytes([len(path)]) + path if path else b"\xbe" + more  # the latest entry of the table
        return head(stream_id, b"\x83\x86\x01\x01x" + field) + body(stream_id)

    server = WholeServer()
    for stream_id in range(1, 11, 2):
        server.receive(indexed(stream_id, b"/first" if stream_id == 1 else b""))
    assert server.whole == [5, 7, 9]
    server.receive(indexed(11, b"/second"))
    for stream_id in range(13, 19, 2):
        server.receive(indexed(stream_id))
    assert server.whole == [5, 7, 9, 15, 17]
    server.connection.forget_heads()
    server.receive(indexed(19))
    server.receive(indexed(21))
    assert server.whole == [5, 7, 9, 15, 17, 21]
    assert [each.head.path for each in server.calls.values()] == [b"/first"] * 5 + [b"/second"] * 6


def test_the_windows_of_whole_requests_open_again():
    server, number = greeted(GREETINGS["a known kind"]), 7
    for _ in range(200):
        server.receive(b"".join(call(number + 2 * place, size=100) for place in range(4)))
        server.respond()
        number += 8
    updates = [each for each in server.sent() if each.kind == WINDOW_UPDATE]
    given = sum(int.from_bytes(each.payload) for each in updates)
    assert server.connection.unreturned_bytes == 0
    assert len(server.whole) == 800
    assert 0 <= 80_060 - given < 65_535 // 2


def test_an_exception_of_the_receiver_resets_the_stream():
    class Broken(WholeServer):
        def on_whole_request(self, *_):
            raise ZeroDivisionError

    server = Broken()
    server.receive(call(1))
    with pytest.raises(ZeroDivisionError):
        server.receive(call(3))
    assert [(each.kind, each.stream_id) for each in server.sent()] == [(RST_STREAM, 3)]
    assert set(server.connection.streams) == {1}


def test_an_exception_in_the_middle_of_a_read_keeps_the_windows_of_what_came_before():
    class Brittle(WholeServer):
        def on_whole_request(self, stream, *rest):
            if stream.id == 7:
                raise ZeroDivisionError
            return super().on_whole_request(stream, *rest)

    server = Brittle(Config(connection_window_bytes=65_535))
    server.receive(call(1, size=1))
    server.output()
    with pytest.raises(ZeroDivisionError):
        server.receive(b"".join(call(number, size=10_000) for number in (3, 5, 7)))
    server.receive(call(9, size=10_000))
    assert server.whole == [3, 5, 9]
    assert [each.payload for each in server.sent() if each.kind == WINDOW_UPDATE] == [http2.u32(40_001)]


def test_an_answer_in_a_form_is_the_same_answer():
    many = HeaderBlock([(b":status", b"200"), (b"a", b"100%b %%")])
    end = HeaderBlock([(b"grpc-status", b"0"), (b"c", b"%")])
    form = AnswerForm(many, b"50%% %b%b!", end)
    server = Server()
    for stream_id in (1, 3):
        server.receive(http2.headers(stream_id))
    assert server.stream(1).respond_in(form, 13, (b"off", b" now%"))
    filled = server.output()
    server.stream(3).respond(many, b"50% off now%!", end)
    assert filled == server.output().replace(http2.u32(3), http2.u32(1))
    assert not server.connection.streams


def test_an_answer_in_a_form_waits_for_nothing():
    form = AnswerForm(http2.HEAD, b"%b", http2.TRAILERS)
    server = Server()
    server.receive(http2.settings(id_4=3))
    server.receive(http2.headers(1) + http2.headers(3) + http2.headers(5))
    server.output()
    assert not server.stream(1).respond_in(form, 4, (b"four",))
    assert server.stream(1).respond_in(form, 3, (b"two",))
    assert not server.stream(1).respond_in(form, 3, (b"two",))
    server.stream(3).reset()
    assert not server.stream(3).respond_in(form, 3, (b"two",))
    server.output()
    server.receive(http2.settings(id_1=0))  # the next block must say that it uses no table
    assert not server.stream(5).respond_in(form, 3, (b"two",))
