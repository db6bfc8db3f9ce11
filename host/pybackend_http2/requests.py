"""From HEADERS, CONTINUATION and DATA to requests (RFC 9113 sections 5.1, 6.1, 6.2, 6.10 and 8.1)."""

from dataclasses import dataclass
from typing import Final

from pybackend_http2 import frames
from pybackend_http2.control import ControlFrames
from pybackend_http2.core import ConnectionCore
from pybackend_http2.errors import (
    ErrorCode,
    RemoteProtocolError,
    StreamError,
    frame_size_error,
    protocol_error,
)
from pybackend_http2.header_block import HeaderBlock
from pybackend_http2.header_decoder import HeaderListTooLarge
from pybackend_http2.request_head import Fields, RequestHead, malformed
from pybackend_http2.settings import HARD_FACTOR
from pybackend_http2.stream import Stream, StreamReceiver

_DATA, _HEADERS, _END_STREAM, _PADDED = frames.DATA, frames.HEADERS, frames.END_STREAM, frames.PADDED

_VIEWED_BYTES: Final = 4096
"""Payloads of this size and more are delivered as views: making one costs as much as copying some thousand bytes."""

_HEADERS_EXTRA_BYTES: Final = 1 + 5 + 255
"""Padding and priority of a HEADERS frame, beside its part of the header block."""

_MOST_GAPS: Final = 32
"""Ranges of stream numbers that the client has left out."""

_TOO_LARGE: Final = HeaderBlock([(b":status", b"431")])


@dataclass(slots=True)
class OpenBlock:
    """A header block whose CONTINUATION frames are still to come."""

    stream_id: int
    flags: int
    fragment: bytearray
    continuations: int = 0


class Requests:
    """Makes requests of one client's frames."""

    def __init__(self, core: ConnectionCore, control: ControlFrames) -> None:
        # a header block whose end has not arrived: only CONTINUATION may follow
        self.open_block: OpenBlock | None = None
        self._core = core
        self._control = control
        self._streams = core.streams
        self._decoder = core.decoder
        self._known = core.decoder.known
        self._max_frame_bytes = core.config.max_frame_bytes
        self._gaps: list[range] = []

    def check_length(self, kind: int, length: int) -> None:
        """Check the length of a frame before its payload is collected; raises RemoteProtocolError."""
        if length > self._max_frame_bytes:
            what = f"a {frames.name_of(kind)} frame of {length} bytes"
            raise frame_size_error("4.2", f"{what}; at most {self._max_frame_bytes} are accepted")
        if kind in {_HEADERS, frames.CONTINUATION}:
            self._check_block_size(length - _HEADERS_EXTRA_BYTES)
        else:
            self._control.check_length(kind, length)

    def _check_block_size(self, size: int) -> None:
        limit = self._core.config.max_header_list_bytes * HARD_FACTOR
        if size > limit:
            raise RemoteProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "10.5.1", f"a header block exceeds {limit} bytes")

    def headers_with_extras(self, flags: int, stream_id: int, payload: bytes) -> None:
        """HEADERS with padding or priority, or with the first part of a header block."""
        begin, end = 0, len(payload)
        if flags & _PADDED:
            if not payload:
                raise frame_size_error("6.2", "padded HEADERS have no bytes")
            begin, end = 1, end - payload[0]
        if flags & frames.PRIORITY_FLAG:
            begin += 5
        if begin > end:
            raise protocol_error("6.2", "the padding or priority of HEADERS exceeds the frame")
        if flags & frames.END_HEADERS:
            self.header_block(payload[begin:end], flags, stream_id)
            return
        self.open_block = OpenBlock(stream_id, flags, bytearray(payload[begin:end]))

    def continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The next part of a header block."""
        block = self.open_block
        if block is None:
            raise protocol_error("6.10", f"CONTINUATION on stream {stream_id} continues nothing")
        block.continuations += 1
        limit = self._core.config.max_continuations
        if block.continuations > limit:
            raise RemoteProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "10.5", f"more than {limit} CONTINUATION frames")
        block.fragment += payload
        self._check_block_size(len(block.fragment))
        if flags & frames.END_HEADERS:
            self.open_block = None
            self.header_block(bytes(block.fragment), block.flags, stream_id)

    # --- HEADERS ---

    def header_block(self, block: bytes, flags: int, stream_id: int) -> None:
        """A whole header block: a request begins, or trailers end it."""
        core = self._core
        if stream_id <= core.highest_id or not stream_id & 1:
            self._later_headers(block, flags, stream_id)
            return
        if stream_id != core.highest_id + 2:
            self._gaps = [*self._gaps[1 - _MOST_GAPS :], range(core.highest_id + 2, stream_id)]
        core.highest_id = stream_id
        fields_apart: Fields = ()
        head = self._known.get(block)
        if head is None:
            self._check_block_size(len(block))
            head = self._decode(block, flags, stream_id)
            if head is None:
                return
            fields_apart = self._decoder.fields_apart
        self.begin(stream_id, head, fields_apart, ended=bool(flags & _END_STREAM))

    def begin(self, stream_id: int, head: RequestHead, fields_apart: Fields, *, ended: bool) -> None:
        """Begin a request whose head has arrived, on the next stream."""
        core = self._core
        if core.last_stream_accepted is not None:
            core.guard.count_frame("a request after the last GOAWAY")
            return
        if len(self._streams) >= core.max_streams:
            core.refuse_stream(stream_id)
            return
        stream = Stream(core, core.sender, stream_id, core.stream_window, not ended)
        if fields_apart:
            stream.fields_apart = fields_apart
        if head.content_length is not None:
            if ended and head.content_length:
                core.fail_stream(stream_id, malformed("8.1.1", "a content-length, and no body"))
                return
            stream.content_left = head.content_length
        self._streams[stream_id] = stream
        try:
            receiver = core.receiver.on_request(stream, head, ended)
        except BaseException:  # whatever the user raised: the stream has no receiver to hear of its end
            core.reset_stream(stream, ErrorCode.INTERNAL_ERROR)
            raise
        if stream_id in self._streams:  # it may be answered already
            stream.receiver = receiver

    def _decode(self, block: bytes, flags: int, stream_id: int) -> RequestHead | None:
        """Return the head of a request; if it has faults, answer it and return None."""
        core = self._core
        try:
            return self._decoder.request(block)
        except HeaderListTooLarge:
            core.guard.count_reset()
            core.sender.headers(stream_id, _TOO_LARGE, ends=True)
            if not flags & _END_STREAM:
                core.send_reset(stream_id, ErrorCode.NO_ERROR)
        except StreamError as error:
            core.fail_stream(stream_id, error)
        return None

    def _later_headers(self, block: bytes, flags: int, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            self._headers_of_no_stream(block, stream_id)
            return
        try:
            if not stream.receiving:
                self._decoder.skip(block)
                raise _stream_closed(f"HEADERS after the end of stream {stream_id}")
            fields = self._decoder.trailers(block)
            if not flags & _END_STREAM:
                raise malformed("8.1", "trailers do not end the stream")
            if stream.content_left:
                raise malformed("8.1.1", "the body is shorter than its content-length")
        except StreamError as error:
            self._core.fail_stream(stream_id, error)
            return
        self._request_ended(stream).on_trailers(fields)

    def _headers_of_no_stream(self, block: bytes, stream_id: int) -> None:
        if not stream_id & 1:
            raise protocol_error("5.1.1", f"a client opened stream {stream_id}, which is not odd")
        if self._core.was_reset_by_us(stream_id):
            self._core.guard.count_frame("HEADERS of a stream that was reset")
            self._decoder.skip(block)
            return
        if any(stream_id in gap for gap in self._gaps):
            raise protocol_error("5.1.1", f"stream {stream_id} was opened after stream {self._core.highest_id}")
        raise RemoteProtocolError(ErrorCode.STREAM_CLOSED, "5.1", f"HEADERS on stream {stream_id}, which is closed")

    # --- DATA ---

    def data(self, data: bytes | memoryview, start: int, stop: int, flags: int, stream_id: int) -> None:
        """A whole DATA frame without padding."""
        size = stop - start
        core = self._core
        stream = self._streams.get(stream_id)
        if (
            stream is not None
            and stream.receiving
            and 0 < size <= stream.receive_window
            and size <= core.receive_window
            and size <= self._max_frame_bytes
            and stream.content_left is None
        ):  # the usual case, with admit() and deliver() in one
            stream.receive_window -= size
            core.receive_window -= size
            if core.guard.spent:
                core.guard.data_moved(1)
            ended = flags & _END_STREAM == _END_STREAM
            receiver = self._request_ended(stream) if ended else stream.receiver
            receiver.on_data(part_of(data, start, stop), ended)
            return
        stream = self.admit(stream_id, size)
        if stream is not None:
            ended = bool(flags & _END_STREAM)
            self.count_data(size, ends=ended)
            if size or ended:
                self.deliver(stream, part_of(data, start, stop), ended=ended)

    def admit(self, stream_id: int, size: int) -> Stream | None:
        """Count DATA against the windows. Returns None if it must be dropped; then it has been given back."""
        core = self._core
        if size > self._max_frame_bytes:
            self.check_length(_DATA, size)
        stream = self._streams.get(stream_id)
        if (
            stream is not None
            and stream.receiving
            and (size <= stream.receive_window or not size)  # a smaller setting can make a window negative
            and size <= core.receive_window
        ):
            stream.receive_window -= size
            core.receive_window -= size
            return stream
        if not stream_id or core.is_idle(stream_id):
            raise protocol_error("6.1", f"DATA on stream {stream_id}, which was never opened")
        if size > core.receive_window:
            raise RemoteProtocolError(
                ErrorCode.FLOW_CONTROL_ERROR,
                "6.9.1",
                f"{size} bytes of DATA exceed the connection's window of {core.receive_window}",
            )
        core.receive_window -= size
        core.give_back(size)
        if stream is not None and stream.receiving:
            error = StreamError(
                ErrorCode.FLOW_CONTROL_ERROR,
                "6.9.1",
                f"{size} bytes of DATA exceed the window of {stream.receive_window} of stream {stream_id}",
            )
            core.fail_stream(stream_id, error)
        elif stream is None and core.was_reset_by_us(stream_id):
            core.guard.count_frame("DATA of a stream that was reset")
        else:
            core.fail_stream(stream_id, _stream_closed(f"DATA after the end of stream {stream_id}"))
        return None

    def count_data(self, size: int, *, ends: bool) -> None:
        """Count a frame of DATA as progress, or as none if it is empty."""
        if size:
            self._core.guard.data_moved(1)
        elif not ends:
            self._core.guard.count_frame("empty DATA")

    def deliver(self, stream: Stream, payload: bytes | memoryview, *, ended: bool) -> None:
        """Pass on a piece of a body, unless the stream has gone meanwhile."""
        if not stream.receiving:
            self._core.give_back(len(payload))
            return
        if stream.content_left is not None:
            stream.content_left -= len(payload)
            if stream.content_left < 0 or (ended and stream.content_left):
                stream.give_back(len(payload))
                self._core.fail_stream(
                    stream.id, malformed("8.1.1", "the body has not the length of its content-length")
                )
                return
        receiver = self._request_ended(stream) if ended else stream.receiver
        receiver.on_data(payload, ended)

    def _request_ended(self, stream: Stream) -> StreamReceiver:
        """Note the end of a request; returns the receiver, which a stream that has ended no longer has."""
        receiver = stream.receiver
        stream.receiving = False
        if not stream.sending and not stream.waiting_bytes:
            self._core.stream_finished(stream)
        return receiver


def part_of(data: bytes | memoryview, start: int, stop: int) -> bytes | memoryview:
    """Return a piece of received bytes: a copy if it is short, else a view."""
    if stop - start < _VIEWED_BYTES or type(data) is not bytes:
        return data[start:stop]
    return memoryview(data)[start:stop]


def _stream_closed(message: str) -> StreamError:
    return StreamError(ErrorCode.STREAM_CLOSED, "5.1", message)
