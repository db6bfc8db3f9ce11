"""From bytes to frames.

Frames that lie whole in the received bytes are read where they lie. A frame that was cut is collected if it is small;
the payload of DATA is passed on in the pieces in which it arrives and is never collected.

Why receivers and no list of events: a unary call is two events, and an object for each with its place in a list and the
test of its type costs more than the method call that replaces all three.
"""

from dataclasses import dataclass
from typing import Final

from pybackend_http2 import frames
from pybackend_http2.control import ControlFrames
from pybackend_http2.core import ConnectionCore
from pybackend_http2.errors import LocalProtocolError, frame_size_error, protocol_error
from pybackend_http2.requests import Requests, part_of
from pybackend_http2.stream import Stream
from pybackend_http2.whole_requests import CONNECTION_UPDATE, WholeRequests

_DATA, _HEADERS, _END_STREAM, _PADDED = frames.DATA, frames.HEADERS, frames.END_STREAM, frames.PADDED
_WINDOW_UPDATE: Final = frames.WINDOW_UPDATE
_PLAIN_HEADERS_MASK: Final = frames.END_HEADERS | frames.PADDED | frames.PRIORITY_FLAG
_USUAL_BYTES: Final = frames.DEFAULT_FRAME_BYTES
_UNPACK: Final = frames.FRAME_HEADER.unpack_from

_SHORTEST_BYTES: Final = frames.FRAME_HEADER_BYTES + frames.U32.size
"""Of what :class:`WholeRequests` takes."""

_MOST_FRAMES: Final = 32
"""Of one call: the slowest of them take a millisecond together, and whole requests count as one frame per eight."""


@dataclass(slots=True)
class _OpenPayload:
    """A payload that arrives in pieces: DATA, or bytes to skip if there is no stream."""

    stream: Stream | None
    left: int
    padding: int
    ends: bool


class Incoming:
    """Cuts the bytes of one client into frames."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._control = ControlFrames(core)
        self._requests = Requests(core, self._control)
        self._whole = WholeRequests(core, self._requests)
        self._preface_left = frames.PREFACE
        self._settings_seen = False
        self._payload: _OpenPayload | None = None
        self._cut = bytearray()
        self._is_unfinished = True
        self._order_matters = True

    def watch_order(self) -> None:
        """Look at the connection's state before the next frame."""
        self._order_matters = True

    def receive(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        if type(data) is not bytes:
            return self._receive_frames(memoryview(data), offset, None, None)
        if self._order_matters or self._is_unfinished or len(data) - offset < _SHORTEST_BYTES:
            return self._receive_frames(data, offset, data, data)
        if data[offset + 3] == _HEADERS:
            begin, offset = offset, self._whole.take(data, offset)
            if offset == len(data):
                return offset
            return self._receive_frames(data, offset, data, data if offset > begin else None)
        if data.startswith(CONNECTION_UPDATE, offset):
            offset = self._whole.take(data, offset)
            if offset == len(data):
                return offset
        return self._receive_frames(data, offset, data, data)

    def _receive_frames(self, data: bytes | memoryview, offset: int, whole: bytes | None, tried: bytes | None) -> int:
        """Go on frame by frame; ``tried`` is the data in which whole requests may follow, ``whole`` that in which they may come later."""
        end = len(data)
        if self._core.is_closed:
            return end
        if self._is_unfinished:
            offset = self._resume(data, offset)
        left = _MOST_FRAMES
        while left and end - offset >= 9:
            left -= 1
            begin = offset
            if tried is not None and data[begin + 3] == _HEADERS and not self._order_matters:
                offset = self._whole.take(tried, begin)
                if offset != begin:
                    continue
                tried = None  # heads of several requests may follow each other
            word, flags, stream_id = _UNPACK(data, begin)
            start = begin + 9
            offset = start + (word >> 8)
            kind = word & 0xFF
            if offset > end or (kind == _DATA and flags & _PADDED):
                offset = self._begin(data, begin)
                continue
            if self._order_matters and not self._is_in_order(kind, flags, stream_id):
                return end
            if kind == _DATA:
                self._requests.data(data, start, offset, flags, stream_id & 0x7FFFFFFF)
                tried = whole
            elif (
                kind == _HEADERS
                and flags & _PLAIN_HEADERS_MASK == frames.END_HEADERS
                and offset - start <= _USUAL_BYTES
            ):
                self._requests.header_block(bytes(data[start:offset]), flags, stream_id & 0x7FFFFFFF)
            else:
                self._other_frame(kind, flags, stream_id & 0x7FFFFFFF, bytes(data[start:offset]))
        return self._begin(data, offset) if left and offset < end else offset

    def _begin(self, data: bytes | memoryview, offset: int) -> int:
        """Begin a frame that is cut or padded; returns where the next one may begin."""
        return self._resume(data, self._collect(data, offset))

    def _resume(self, data: bytes | memoryview, offset: int) -> int:
        """Go on with an unfinished preface, frame or payload; returns where the next frame may begin."""
        if self._preface_left:
            offset = self._match_preface(data)
        end = len(data)
        while offset < end and (self._payload is not None or self._cut):
            if self._core.is_closed:
                return end
            offset = self._collect(data, offset) if self._payload is None else self._more_payload(data, offset)
        self._is_unfinished = bool(self._preface_left or self._cut or self._payload is not None)
        return offset

    def _match_preface(self, data: bytes | memoryview) -> int:
        left = self._preface_left
        received = bytes(data[: len(left)])
        if not left.startswith(received):
            advice = "; this port speaks HTTP/2 without TLS only" if received[:1].isalpha() else ""
            raise protocol_error("3.4", f"the connection does not begin with the HTTP/2 preface{advice}")
        self._preface_left = left[len(received) :]
        return len(received)

    def _collect(self, data: bytes | memoryview, offset: int) -> int:
        """Collect a frame that does not lie whole in one piece; judge its header as soon as it has arrived."""
        cut = self._cut
        if len(cut) < frames.FRAME_HEADER_BYTES:
            offset = _move(data, offset, cut, frames.FRAME_HEADER_BYTES)
            if len(cut) < frames.FRAME_HEADER_BYTES:
                return offset
            word, flags, stream_id = _UNPACK(cut)
            kind, length = word & 0xFF, word >> 8
            if not self._is_in_order(kind, flags, stream_id):
                cut.clear()
                return len(data)
            self._requests.check_length(kind, length)
            if not self._is_collected(kind, flags, length):
                cut.clear()
                self._open_payload(kind, flags, stream_id & frames.STREAM_BITS, length, None)
                return offset
        word, flags, stream_id = _UNPACK(cut)
        kind = word & 0xFF
        whole = frames.FRAME_HEADER_BYTES + (1 if kind == _DATA and flags & _PADDED else word >> 8)
        offset = _move(data, offset, cut, whole)
        if len(cut) == whole:
            payload = bytes(cut[frames.FRAME_HEADER_BYTES :])
            cut.clear()
            if kind == _DATA and flags & _PADDED:
                self._open_payload(kind, flags, stream_id & frames.STREAM_BITS, word >> 8, payload[0])
            else:
                self._other_frame(kind, flags, stream_id & frames.STREAM_BITS, payload)
        return offset

    def _is_collected(self, kind: int, flags: int, length: int) -> bool:
        """Whether a frame's payload (of padded DATA: its first byte) is needed as a whole."""
        if kind == _DATA:
            if flags & _PADDED and not length:
                raise frame_size_error("6.1", "padded DATA has no bytes")
            return bool(flags & _PADDED)
        return kind in {_HEADERS, frames.CONTINUATION} or self._control.handles(kind)

    def _open_payload(self, kind: int, flags: int, stream_id: int, length: int, padding: int | None) -> None:
        """DATA or an unknown frame begins; any part of it may have arrived."""
        if kind != _DATA:
            self._core.guard.count_frame(f"a frame of {frames.name_of(kind)}")
            self._payload = _OpenPayload(None, length, 0, ends=False) if length else None
            return
        overhead = 0 if padding is None else 1 + padding
        if overhead > length:
            raise protocol_error("6.1", f"{padding} bytes of padding in {length} bytes of DATA")
        stream = self._requests.admit(stream_id, length)
        ends = bool(flags & _END_STREAM)
        if stream is not None:
            if overhead:
                stream.give_back(overhead)
            self._requests.count_data(length - overhead, ends=ends)
        self._payload = _OpenPayload(stream, length - overhead, padding or 0, ends=ends)
        self._finish_payload()

    def _more_payload(self, data: bytes | memoryview, offset: int) -> int:
        """Pass on what has arrived of a payload, and skip its padding."""
        payload = self._payload
        assert payload is not None
        stop = min(offset + payload.left, len(data))
        if stop > offset:
            payload.left -= stop - offset
            ended = payload.ends and not payload.left and not payload.padding
            if ended:
                self._payload = None
            if payload.stream is not None:
                self._requests.deliver(payload.stream, part_of(data, offset, stop), ended=ended)
            if ended:
                return stop
        skipped = min(payload.padding, len(data) - stop)
        if not payload.left:
            payload.padding -= skipped
            stop += skipped
        self._finish_payload()
        return stop

    def _finish_payload(self) -> None:
        payload = self._payload
        if payload is None or payload.left or payload.padding:
            return
        self._payload = None
        if payload.ends and payload.stream is not None:
            self._requests.deliver(payload.stream, b"", ended=True)

    @property
    def is_amid_frame(self) -> bool:
        if self._preface_left:
            return len(self._preface_left) < len(frames.PREFACE)
        return self._is_unfinished or self._requests.open_block is not None

    @property
    def expected_payload(self) -> tuple[Stream, int] | None:
        payload = self._payload
        if payload is None or payload.stream is None or not payload.left or not payload.stream.receiving:
            return None
        return payload.stream, payload.left

    def payload_stored(self, count: int) -> None:
        payload = self._payload
        if payload is None or payload.stream is None or not 0 <= count <= payload.left:
            raise LocalProtocolError(f"{count} bytes were not expected: see expected_payload")
        if payload.stream.content_left is not None:
            payload.stream.content_left -= count
        payload.left -= count
        self._finish_payload()
        self._is_unfinished = self._payload is not None

    def _is_in_order(self, kind: int, flags: int, stream_id: int) -> bool:
        """Whether the frame may be processed, which it may not after the connection was closed.

        Raises if another had to come first.
        """
        if self._core.is_closed:
            return False
        if not self._settings_seen:
            if kind != frames.SETTINGS or flags & frames.ACK:
                first = "an acknowledgement of SETTINGS" if kind == frames.SETTINGS else frames.name_of(kind)
                raise protocol_error("3.4", f"the first frame is {first}, not SETTINGS")
            self._settings_seen = True
        block = self._requests.open_block
        if block is not None and (kind != frames.CONTINUATION or stream_id & frames.STREAM_BITS != block.stream_id):
            raise protocol_error("6.10", f"{frames.name_of(kind)} inside the header block of stream {block.stream_id}")
        self._order_matters = block is not None
        return True

    def _other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Any frame but plain HEADERS and DATA."""
        if kind == _WINDOW_UPDATE and len(payload) == frames.U32.size:  # clients of gRPC send two with each message
            self._control.handle(kind, flags, stream_id, payload)
            return
        self._requests.check_length(kind, len(payload))
        if kind == _HEADERS:
            self._requests.headers_with_extras(flags, stream_id, payload)
        elif kind == frames.CONTINUATION:
            self._requests.continuation(flags, stream_id, payload)
        elif self._control.handles(kind):
            self._control.handle(kind, flags, stream_id, payload)
        else:
            self._core.guard.count_frame(f"a frame of {frames.name_of(kind)}")
        if self._requests.open_block is not None:
            self._order_matters = True


def _move(data: bytes | memoryview, offset: int, collected: bytearray, size: int) -> int:
    """Append bytes until ``collected`` has ``size``; returns the offset behind them."""
    stop = min(offset + size - len(collected), len(data))
    collected += data[offset:stop]
    return stop
