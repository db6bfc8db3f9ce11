"""Frames that carry no part of a message: SETTINGS, PING, GOAWAY, WINDOW_UPDATE, RST_STREAM, PRIORITY (RFC 9113 section 6)."""

from typing import Final

from pybackend_http2 import frames, settings
from pybackend_http2.core import ConnectionCore
from pybackend_http2.errors import (
    ErrorCode,
    RemoteProtocolError,
    StreamError,
    frame_size_error,
    protocol_error,
)
from pybackend_http2.fields import DEFAULT_TABLE_BYTES

_SETTINGS_ACKNOWLEDGED: Final = frames.frame(frames.SETTINGS, frames.ACK, 0)

_MOST_SETTINGS_BYTES: Final = 64 * 6
_MOST_GOAWAY_BYTES: Final = 4096

_LENGTHS: Final = {
    frames.RST_STREAM: (4, "6.4"),
    frames.PING: (8, "6.7"),
    frames.WINDOW_UPDATE: (4, "6.9"),
}
"""Frames of a fixed length, and the section that says so."""


class ControlFrames:
    """Handles the control frames of one connection."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._peer_table_bytes = DEFAULT_TABLE_BYTES

    def check_length(self, kind: int, length: int) -> None:
        """Check the length of a control frame before its payload is collected: it may be wrong, or beyond every use."""
        expected = _LENGTHS.get(kind)
        if expected is not None and length != expected[0]:
            raise frame_size_error(expected[1], f"a {frames.name_of(kind)} frame has {length} bytes, not {expected[0]}")
        if (kind == frames.SETTINGS and length > _MOST_SETTINGS_BYTES) or (
            kind in {frames.GOAWAY, frames.PRIORITY} and length > _MOST_GOAWAY_BYTES
        ):
            raise RemoteProtocolError(
                ErrorCode.ENHANCE_YOUR_CALM, "10.5", f"a {frames.name_of(kind)} frame has {length} bytes"
            )

    def handles(self, kind: int) -> bool:
        """Whether it is a known control frame."""
        return kind in self._handlers

    def handle(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Process a control frame whose length was checked; raises a RemoteProtocolError if the connection must end."""
        self._handlers[kind](self, flags, stream_id, payload)

    def _priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise protocol_error("6.3", "PRIORITY on stream 0")
        if len(payload) != 5:
            if stream_id not in self._core.streams:
                raise frame_size_error("6.3", f"a PRIORITY frame has {len(payload)} bytes, not 5")
            error = StreamError(ErrorCode.FRAME_SIZE_ERROR, "6.3", f"a PRIORITY frame has {len(payload)} bytes, not 5")
            self._core.fail_stream(stream_id, error)
        self._core.guard.count_frame("PRIORITY")

    def _rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._expect_not_idle("6.4", "RST_STREAM", stream_id)
        stream = self._core.streams.get(stream_id)
        if stream is None:
            self._core.guard.count_frame("RST_STREAM for a closed stream")
        else:
            self._core.stream_was_reset(stream, frames.U32.unpack(payload)[0])

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        core = self._core
        if stream_id:
            raise protocol_error("6.5", f"SETTINGS on stream {stream_id}")
        if flags & frames.ACK:
            if payload:
                raise frame_size_error("6.5", f"an acknowledgement of SETTINGS has {len(payload)} bytes")
            core.settings_were_acknowledged()
            return
        if len(payload) % 6:
            raise frame_size_error("6.5", f"a SETTINGS frame has {len(payload)} bytes, not a multiple of 6")
        core.guard.count_frame("SETTINGS")
        window = core.sender.initial_window
        for key, value in settings.decode(payload):
            if key == settings.INITIAL_WINDOW_SIZE:
                window = value
            elif key == settings.MAX_FRAME_SIZE:
                core.sender.max_frame_bytes = value
            elif key == settings.HEADER_TABLE_SIZE:
                if value < self._peer_table_bytes:
                    core.sender.limit_table()
                self._peer_table_bytes = value
        if window != core.sender.initial_window:  # once, however often it is repeated: all streams are touched
            self._change_send_windows(window)
        core.sender.reply(_SETTINGS_ACKNOWLEDGED)

    def _change_send_windows(self, size: int) -> None:
        sender = self._core.sender
        difference, sender.initial_window = size - sender.initial_window, size
        for stream in self._core.streams.values():
            stream.send_window += difference
            if stream.send_window > frames.LARGEST_WINDOW_BYTES:
                raise RemoteProtocolError(
                    ErrorCode.FLOW_CONTROL_ERROR, "6.9.2", f"SETTINGS let the window of stream {stream.id} overflow"
                )
            sender.enqueue(stream)

    def _push_promise(self, _flags: int, stream_id: int, _payload: bytes) -> None:
        raise protocol_error("8.4", f"a client sent PUSH_PROMISE on stream {stream_id}")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        core = self._core
        if stream_id:
            raise protocol_error("6.7", f"PING on stream {stream_id}")
        core.guard.count_frame("PING")
        if flags & frames.ACK:
            core.ping_was_acknowledged(payload)
            return
        if core.ping_judge is not None:
            core.ping_judge.received(core.answered_mark, is_idle=not core.streams)
        core.sender.reply(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise protocol_error("6.8", f"GOAWAY on stream {stream_id}")
        if len(payload) < 8:
            raise frame_size_error("6.8", f"a GOAWAY frame has {len(payload)} bytes, fewer than 8")
        self._core.guard.count_frame("GOAWAY")

    def _window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        core, sender = self._core, self._core.sender
        core.guard.count_frame("WINDOW_UPDATE")
        increment = frames.U32.unpack(payload)[0] & frames.STREAM_BITS
        if not stream_id:
            if not increment:
                raise protocol_error("6.9", "a WINDOW_UPDATE of the connection by 0")
            sender.window += increment
            sender.granted_window += increment
            if sender.window > frames.LARGEST_WINDOW_BYTES:
                raise RemoteProtocolError(
                    ErrorCode.FLOW_CONTROL_ERROR, "6.9.1", "the connection's window exceeds 2147483647 bytes"
                )
            return
        self._expect_not_idle("6.9", "WINDOW_UPDATE", stream_id)
        stream = core.streams.get(stream_id)
        if stream is None:
            return
        if not increment:
            error = StreamError(ErrorCode.PROTOCOL_ERROR, "6.9", f"a WINDOW_UPDATE of stream {stream_id} by 0")
            core.fail_stream(stream_id, error)
        elif stream.send_window + increment > frames.LARGEST_WINDOW_BYTES:
            error = StreamError(ErrorCode.FLOW_CONTROL_ERROR, "6.9.1", f"the window of stream {stream_id} overflows")
            core.fail_stream(stream_id, error)
        else:
            stream.send_window += increment
            sender.enqueue(stream)

    def _expect_not_idle(self, section: str, what: str, stream_id: int) -> None:
        if not stream_id or self._core.is_idle(stream_id):
            raise protocol_error(section, f"{what} on stream {stream_id}, which was never opened")

    # Functions, and not methods of one object: a table of these would keep the object alive until the garbage collector
    # runs.
    _handlers: Final = {
        frames.PRIORITY: _priority,
        frames.RST_STREAM: _rst_stream,
        frames.SETTINGS: _settings,
        frames.PUSH_PROMISE: _push_promise,
        frames.PING: _ping,
        frames.GOAWAY: _goaway,
        frames.WINDOW_UPDATE: _window_update,
    }
