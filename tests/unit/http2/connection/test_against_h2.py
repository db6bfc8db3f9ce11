"""Both ends talk: ours, and a client of the h2 library. Hypothesis chooses who does what, and where bytes are cut."""

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend_http2 import Config, ErrorCode
from tests.support.http2 import HEAD, TRAILERS, Server

SIZES = st.one_of(st.integers(0, 300), st.integers(0, 40_000), st.sampled_from([16384, 16385, 65535, 65536, 150_000]))
NUMBERS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("open"), SIZES, st.booleans()),
    st.tuples(st.just("body"), NUMBERS, SIZES),
    st.tuples(st.just("end"), NUMBERS, st.booleans()),
    st.tuples(st.just("answer"), NUMBERS, SIZES),
    st.tuples(st.just("view"), NUMBERS, SIZES),
    st.tuples(st.just("finish"), NUMBERS, st.booleans()),
    st.tuples(st.just("respond"), NUMBERS, SIZES),
    st.tuples(st.just("client resets"), NUMBERS),
    st.tuples(st.just("server resets"), NUMBERS),
    st.tuples(st.just("client window"), st.sampled_from([0, 1, 1000, 65535, 100_000])),
    st.tuples(st.just("client frame"), st.sampled_from([16384, 20000, 2**24 - 1])),
    st.tuples(st.just("client table"), st.sampled_from([0, 100, 4096])),
    st.tuples(st.just("ping")),
    st.tuples(st.just("read"), st.integers(1, 70_000)),
    st.tuples(st.just("to server"), st.integers(1, 70_000)),
    st.tuples(st.just("to client"), st.integers(1, 70_000), st.integers(1, 100_000)),
)


def _bytes(size, seed):
    return (bytes([seed % 251, size % 251, 7]) * (size // 3 + 1))[:size]


class Talk:
    """Two ends and the bytes between them.

    What each side has sent on a stream is compared at the end with what the other side has received.

    A fault of h2 is kept out: it takes the acknowledgement of its oldest settings for that of all.
    """

    def __init__(self, config):
        self.server = Server(config, greet=False, gives_back=False)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.client.initiate_connection()
        self.uplink = bytearray()
        self.downlink = bytearray()
        self.requests = {}  # by stream: the bytes that the client has sent
        self.unsent = {}  # and those that its windows do not let it send yet
        self.ending = {}  # streams whose request ends behind them, and whether with trailers
        self.answers = {}  # by stream: the bytes that the server has sent, and what the client has received of them
        self.received = {}
        self.finished = set()  # streams whose answers the server has ended, and those of which the client knows
        self.known_finished = set()
        self.reset = set()
        self.unread = {}
        self.pings = 0
        self.pongs = []
        self.unacknowledged = True

    # --- the client ---

    def open(self, size, ended):
        if self.client.open_outbound_streams >= self.client.remote_settings.max_concurrent_streams:
            return
        stream_id = self.client.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "http"), (":path", f"/{size % 3}"), (":authority", "x")]
        self.client.send_headers(stream_id, [*fields, ("x-size", str(size % 7)), ("te", "trailers")])
        self.requests[stream_id] = bytearray()
        self.answers[stream_id], self.received[stream_id] = bytearray(), bytearray()
        self.unsent[stream_id] = bytearray()
        self._add_body(stream_id, size)
        if ended:
            self.ending[stream_id] = False
        self._send_bodies()

    def body(self, number, size):
        if (stream_id := self._stream(number, self.unsent)) and stream_id not in self.ending:
            self._add_body(stream_id, size)
            self._send_bodies()

    def end(self, number, with_trailers):
        if stream_id := self._stream(number, self.unsent):
            self.ending.setdefault(stream_id, with_trailers)
            self._send_bodies()

    def client_resets(self, number):
        if stream_id := self._stream(number, self.requests):
            try:
                self.client.reset_stream(stream_id, ErrorCode.CANCEL)
            except h2.exceptions.StreamClosedError:
                return
            self._forget(stream_id)

    def client_window(self, size):
        self._client_changes(h2.settings.SettingCodes.INITIAL_WINDOW_SIZE, size)

    def client_frame(self, size):
        self._client_changes(h2.settings.SettingCodes.MAX_FRAME_SIZE, size)

    def client_table(self, size):
        self._client_changes(h2.settings.SettingCodes.HEADER_TABLE_SIZE, size)

    def _client_changes(self, code, value):
        if not self.unacknowledged:
            self.unacknowledged = True
            self.client.update_settings({code: value})

    def read(self, size):
        """The client's user reads, and so opens windows."""
        for stream_id in list(self.unread):
            count = min(size, self.unread.pop(stream_id))
            if count:
                self.client.acknowledge_received_data(count, stream_id)

    def _add_body(self, stream_id, size):
        body = _bytes(size, stream_id)
        self.requests[stream_id] += body
        self.unsent[stream_id] += body

    def _send_bodies(self):
        for stream_id, body in list(self.unsent.items()):
            while (
                body
                and (room := min(self.client.local_flow_control_window(stream_id), self.client.max_outbound_frame_size))
                > 0
            ):
                padding = len(body) % 3 * 20 if len(body) % 3 and room > 100 else None
                count = min(room - (padding + 1 if padding else 0), len(body))
                self.client.send_data(stream_id, bytes(body[:count]), pad_length=padding)
                del body[:count]
            if not body and stream_id in self.ending:
                del self.unsent[stream_id]
                if self.ending[stream_id]:
                    self.client.send_headers(stream_id, [("x-checksum", "1")], end_stream=True)
                else:
                    self.client.end_stream(stream_id)

    # --- the server ---

    def answer(self, number, size, kind=bytes):
        call = self._call(number)
        if call is not None and call.stream.sending:
            if not call.stream.head_sent:
                call.stream.send_headers(HEAD)
            body = _bytes(size, call.stream.id)
            call.stream.send_data(kind(body))
            self.answers[call.stream.id] += body

    def view(self, number, size):
        self.answer(number, size, memoryview)

    def finish(self, number, with_trailers):
        call = self._call(number)
        if call is not None and call.stream.sending:
            is_empty = not call.stream.head_sent and not with_trailers
            if not call.stream.head_sent:
                call.stream.send_headers(HEAD, end=is_empty)
            if not is_empty:
                call.stream.send_trailers(TRAILERS)
            self.finished.add(call.stream.id)

    def respond(self, number, size):
        call = self._call(number)
        if call is not None and not call.stream.head_sent and call.stream.sending:
            body = _bytes(size, call.stream.id)
            call.stream.respond(HEAD, body, TRAILERS)
            self.answers[call.stream.id] += body
            self.finished.add(call.stream.id)

    def server_resets(self, number):
        call = self._call(number)
        if call is not None and call.stream.id in self.server.connection.streams:
            call.stream.reset(ErrorCode.INTERNAL_ERROR)
            self._forget(call.stream.id)

    def ping(self):
        self.pings += 1
        self.server.connection.ping(b"%08d" % self.pings)
        self.client.ping(b"12345678")

    # --- the wire ---

    def to_server(self, size):
        self.uplink += self.client.data_to_send()
        piece = bytes(self.uplink[:size])
        del self.uplink[:size]
        before = len(self.server.events)
        self.server.receive(piece if len(piece) % 2 else memoryview(piece))
        for kind, *rest in self.server.events[before:]:
            if kind == "data" and rest[1]:
                self.server.calls[rest[0]].stream.give_back(len(rest[1]))

    def to_client(self, size, limit):
        self.downlink += self.server.output(limit)
        piece = bytes(self.downlink[:size])
        del self.downlink[:size]
        for event in self.client.receive_data(piece):
            self._client_hears(event)
        self._send_bodies()

    def _client_hears(self, event):
        match event:
            case h2.events.DataReceived():
                self.received[event.stream_id] += event.data
                self.unread[event.stream_id] = self.unread.get(event.stream_id, 0) + event.flow_controlled_length
            case h2.events.TrailersReceived():
                assert event.headers == [(b"grpc-status", b"0")]
            case h2.events.PingReceived():
                self.pongs.append(event.ping_data)
            case h2.events.SettingsAcknowledged():
                self.unacknowledged = False
            case h2.events.StreamEnded():
                self.known_finished.add(event.stream_id)
            case h2.events.StreamReset(error_code=ErrorCode.REFUSED_STREAM):
                assert event.stream_id not in self.server.calls
                self._forget(event.stream_id)
            case h2.events.StreamReset():
                assert event.stream_id in self.reset
            case h2.events.ConnectionTerminated():
                pytest.fail(f"the server closed the connection: {event.additional_data}")

    def settle(self):
        """Open all windows, end everything, and let all bytes flow."""
        while self.unacknowledged:
            self.to_server(2**30)
            self.to_client(2**30, 2**30)
        self.client_window(2**20)
        for stream_id in list(self.unsent):
            self.ending.setdefault(stream_id, False)
        self.client.increment_flow_control_window(2**24)
        quiet = 0
        while quiet < 3:
            before = (len(self.server.events), len(self.client.data_to_send(0)), sum(map(len, self.received.values())))
            self.read(2**31 - 1)
            self._send_bodies()
            self.to_server(2**30)
            for number in range(len(self.server.calls)):
                self.finish(number, with_trailers=True)
            self.to_client(2**30, 2**30)
            after = (len(self.server.events), len(self.client.data_to_send(0)), sum(map(len, self.received.values())))
            quiet = quiet + 1 if before == after and not self.uplink and not self.downlink else 0

    def check(self):
        for stream_id, call in self.server.calls.items():
            if stream_id not in self.reset:
                assert call.body == self.requests[stream_id]
                assert call.ended
                assert self.received[stream_id] == self.answers[stream_id]
                assert stream_id in self.known_finished
        assert set(self.requests) - self.reset <= set(self.server.calls)
        assert self.server.connection.streams == {}
        assert self.server.connection.waiting_bytes == 0
        assert not self.server.connection.has_output
        assert self.pongs == [b"%08d" % n for n in range(1, self.pings + 1)]

    def _stream(self, number, streams):
        alive = [stream_id for stream_id in streams if stream_id not in self.reset]
        return alive[number % len(alive)] if alive else None

    def _call(self, number):
        alive = [call for stream_id, call in self.server.calls.items() if stream_id not in self.reset]
        return alive[number % len(alive)] if alive else None

    def _forget(self, stream_id):
        self.reset.add(stream_id)
        self.unsent.pop(stream_id, None)
        self.unread.pop(stream_id, None)


CONFIGS = st.builds(
    Config,
    max_concurrent_streams=st.sampled_from([1, 3, 100]),
    stream_window_bytes=st.sampled_from([1000, 65535, 200_000]),
    connection_window_bytes=st.sampled_from([65535, 100_000, 2**24]),
    max_frame_bytes=st.sampled_from([16384, 100_000]),
)


@given(config=CONFIGS, steps=st.lists(STEPS, max_size=40))
@settings(max_examples=150)
def test_nothing_is_lost_or_invented(config, steps):
    talk = Talk(config)
    for name, *arguments in steps:
        getattr(talk, name.replace(" ", "_"))(*arguments)
    talk.settle()
    talk.check()
