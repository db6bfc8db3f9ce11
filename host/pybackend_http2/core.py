"""The state of one connection: its streams, windows and settings, and the ways in which they end.

The parts of the package share it: received frames change it, streams send through it, and ``ServerConnection`` shows a
part of it to the user.
"""

from typing import Final

from pybackend_http2 import frames, settings
from pybackend_http2.errors import ErrorCode, RemoteProtocolError, StreamError
from pybackend_http2.floods import FloodGuard, PingJudge
from pybackend_http2.header_decoder import HeaderDecoder
from pybackend_http2.request_head import RequestHead
from pybackend_http2.settings import Config
from pybackend_http2.stream import GONE, Sender, Stream, StreamReceiver


class ConnectionReceiver:
    """Hears about one connection: the part of the package's user, as ``StreamReceiver`` is for a stream."""

    __slots__ = ()

    def on_request(self, stream: Stream, head: RequestHead, ended: bool, /) -> StreamReceiver:
        """A request begins; returns the receiver of all further events of this stream."""
        raise NotImplementedError

    def on_whole_request(
        self, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int, /
    ) -> StreamReceiver | None:
        """A request with a small body, between two offsets, has arrived in one piece, and its head has ``takes_whole``.

        Its bytes have been given back. Returns the receiver of all further events of this stream. None if the request
        must be heard of by :meth:`on_request` and the methods of a stream's receiver; then nothing was sent on the
        stream.
        """
        return None


_MOST_RESETS_REMEMBERED: Final = 1000
"""Streams that we have reset: frames that the client sent before it knew are dropped, not punished."""

SHUTDOWN_PING: Final = b"shutdown"
"""The payload of the PING whose acknowledgement ends the first step of a shutdown."""


class ConnectionCore:
    """The state of one connection.

    Attributes:
        streams: streams that have not ended, by number.
        highest_id: the highest stream that the client has opened; -1 before the first.
        is_closed: a GOAWAY frame has ended the connection, or the transport has gone.
        is_refusing: no further request is accepted, because the connection is closed or shuts down.
        receive_window: DATA that the client may still send on all streams.
        stream_window: DATA that the client may send on a new stream.
        max_streams: streams that may be open at a time.
        settings_acknowledged: the client has acknowledged our settings.
        last_stream_accepted: streams beyond this one are ignored, because the connection shuts down; None before.
        error: the rule that the client broke, if that ended the connection.
        is_shutting_down: the client was asked to make no further requests.
        credit: DATA that was given back, and of which the client is not told yet.
        ping_judge: judges the client's PINGs; None if it may ping as it likes.
    """

    def __init__(self, receiver: ConnectionReceiver, config: Config) -> None:
        self.streams: dict[int, Stream] = {}
        self.highest_id = -1
        self.is_closed = self.is_refusing = False
        self.receiver = receiver
        self.config = config
        self.guard = FloodGuard(config)
        self.sender = Sender(self.guard)
        self.decoder = HeaderDecoder(config)
        self.receive_window = config.connection_window_bytes
        self.stream_window = max(config.stream_window_bytes, frames.DEFAULT_WINDOW_BYTES)
        self.max_streams = config.max_concurrent_streams
        self.last_stream_accepted: int | None = None
        self.error: RemoteProtocolError | None = None
        self.ping_judge = None if config.ping_rules is None else PingJudge(config.ping_rules)
        self.credit = 0
        self._credit_step = config.connection_window_bytes // 2
        self._reset_by_us: dict[int, None] = {}
        self.settings_acknowledged = False
        self.is_shutting_down = False
        self.sender.pieces.append(settings.encode(config.offered()))
        if more := config.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES:
            self.sender.pieces.append(frames.window_update(0, more))

    def settings_were_acknowledged(self) -> None:
        """The client works by our settings: a window that is smaller than the usual one holds from now on."""
        if self.settings_acknowledged:
            self.guard.count_frame("an acknowledgement of no SETTINGS")
            return
        self.settings_acknowledged = True
        difference = self.config.stream_window_bytes - self.stream_window
        if difference:
            self.stream_window = self.config.stream_window_bytes
            for stream in self.streams.values():
                stream.change_receive_window(difference)

    # --- shutdown ---

    @property
    def last_stream_id(self) -> int:
        """The last stream that was or may be processed, for GOAWAY."""
        return max(self.highest_id, 0) if self.last_stream_accepted is None else self.last_stream_accepted

    def finish_shutdown(self) -> None:
        """Accept no further requests: say which was the last one. Open streams go on."""
        if self.last_stream_accepted is None and not self.is_closed:
            self.is_shutting_down = True
            self.is_refusing = True
            self.last_stream_accepted = self.last_stream_id
            self.sender.pieces.append(frames.goaway(self.last_stream_accepted, ErrorCode.NO_ERROR))

    def ping_was_acknowledged(self, payload: bytes) -> None:
        if payload == SHUTDOWN_PING and self.is_shutting_down:
            self.finish_shutdown()

    @property
    def answered_mark(self) -> object:
        """A value that is another one once data was sent, a stream was opened, or one has ended."""
        return self.sender.granted_window - self.sender.window, self.highest_id, len(self.streams)

    # --- streams ---

    def has(self, stream: Stream) -> bool:
        """Whether the stream has not ended yet."""
        return stream.id in self.streams

    def is_idle(self, stream_id: int) -> bool:
        """Whether the client has never opened the stream."""
        return stream_id > self.highest_id or not stream_id & 1

    def give_back(self, count: int) -> None:
        """Let the client send ``count`` more bytes on the connection."""
        self.credit += count
        if self.credit >= self._credit_step:
            self.receive_window += self.credit
            self.sender.pieces.append(frames.window_update(0, self.credit))
            self.credit = 0

    def stream_finished(self, stream: Stream) -> None:
        """Both sides have ended the stream."""
        stream.receiver = GONE
        if self.streams.pop(stream.id, None) is not None and self.guard.spent:
            self.guard.request_finished()

    def reset_stream(self, stream: Stream, code: int) -> None:
        if stream.id in self.streams:
            self.remove(stream)
            self.send_reset(stream.id, code)

    def fail_stream(self, stream_id: int, error: StreamError) -> None:
        """The client broke a rule on one stream, which may not exist."""
        self.guard.count_reset()
        self.guard.count_reply()
        self.send_reset(stream_id, error.code)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.remove(stream).on_reset(error.code, error)

    def refuse_stream(self, stream_id: int) -> None:
        """The client has opened too many streams at a time; it may try again later."""
        self.guard.count_frame("a request beyond the number of concurrent streams")
        self.guard.count_reply()
        self.send_reset(stream_id, ErrorCode.REFUSED_STREAM)

    def stream_was_reset(self, stream: Stream, code: int) -> None:
        self.remove(stream).on_reset(code, None)
        self.guard.count_reset()

    def was_reset_by_us(self, stream_id: int) -> bool:
        """Whether frames for a stream that no longer exists were sent before the client could know."""
        if stream_id in self._reset_by_us:
            return True
        return self.last_stream_accepted is not None and stream_id > self.last_stream_accepted

    def send_reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM, and bear frames that the client sends before it knows."""
        self.sender.pieces.append(frames.rst_stream(stream_id, code))
        self._reset_by_us[stream_id] = None
        if len(self._reset_by_us) > _MOST_RESETS_REMEMBERED:
            del self._reset_by_us[next(iter(self._reset_by_us))]

    def remove(self, stream: Stream) -> StreamReceiver:
        """Forget a stream; returns the receiver that it had."""
        del self.streams[stream.id]
        stream.receiving = stream.sending = False
        self.sender.forget(stream)
        receiver, stream.receiver = stream.receiver, GONE
        return receiver
