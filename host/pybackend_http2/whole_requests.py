"""Whole requests whose heads are known: taken at once, without a look at each of their frames.

In front of ``incoming`` for the requests that most clients of gRPC send: HEADERS, perhaps a WINDOW_UPDATE of the new
stream, and DATA that ends the stream. Often a WINDOW_UPDATE of the connection follows. Requests that differ in anything
are left to ``incoming``, and so is a request that breaks a rule.
"""

from struct import Struct
from typing import Final, NamedTuple

from pybackend_http2 import frames
from pybackend_http2.core import ConnectionCore
from pybackend_http2.errors import ErrorCode
from pybackend_http2.header_block import escaped
from pybackend_http2.request_head import Fields, RequestHead
from pybackend_http2.requests import Requests
from pybackend_http2.stream import Stream

_LONGEST_BLOCK_BYTES: Final = 1024
_MOST_DATA_BYTES: Final = frames.DEFAULT_FRAME_BYTES
_MOST_IN_A_ROW: Final = 16
"""A request counts as two window updates."""

_HEADER_BYTES: Final = frames.FRAME_HEADER_BYTES
_UNPACK: Final = frames.FRAME_HEADER.unpack_from
_WINDOW_WORD: Final = 4 << 8 | frames.WINDOW_UPDATE
_UNPACK_UPDATE: Final = Struct(">IIBI").unpack_from
"""The payload of WINDOW_UPDATE, and the header of the next frame."""
_UNPACK_U32: Final = frames.U32.unpack_from
_PACK_U32: Final = frames.U32.pack
_HEADERS, _END_HEADERS, _END_STREAM = frames.HEADERS, frames.END_HEADERS, frames.END_STREAM
_STREAM_BITS, _LARGEST_WINDOW_BYTES = frames.STREAM_BITS, frames.LARGEST_WINDOW_BYTES
_UPDATE_BYTES: Final = 4 + _HEADER_BYTES
"""The size of both, and of a whole WINDOW_UPDATE."""

CONNECTION_UPDATE: Final = frames.FRAME_HEADER.pack(_WINDOW_WORD, 0, 0)
"""The header of a WINDOW_UPDATE of the connection."""


_Frames = tuple[RequestHead | None, int, int, int, int]
"""The frames in front of a request's body: the head, None if its block is not in ``HeaderDecoder.known``; the size of
HEADERS; by how much the client has opened the stream's window; the size of the frames, with the header of DATA; the
size of the body."""


class _Kind(NamedTuple):
    """All requests that differ in their stream and in their body only."""

    form: bytes  # these frames as a format for bytes, in which ``%b`` stands for the stream's number
    mentions: int  # how often it has the number
    frames: _Frames


class WholeRequests:
    """Takes the whole requests of one client."""

    def __init__(self, core: ConnectionCore, requests: Requests) -> None:
        self._core = core
        self._decoder = core.decoder
        self._requests = requests
        self._before: _Frames | None = None

    def take(self, data: bytes, offset: int) -> int:
        """Take the whole requests that begin at ``offset``, and window updates of the connection among them.

        Returns the offset behind them, or behind the head of a request that was declined. An update that follows a
        request is not counted as an unproductive frame: a request gives more of these back when it ends.
        """
        core, sender = self._core, self._core.sender
        end, count, used, is_behind = len(data), 0, 0, False
        last, left = end - _HEADER_BYTES, _MOST_IN_A_ROW
        try:
            while offset < last and left > 0:
                if data.startswith(CONNECTION_UPDATE, offset):
                    stop = offset + _UPDATE_BYTES
                    more = _UNPACK_U32(data, offset + _HEADER_BYTES)[0] if stop <= end else 0
                    if not 0 < more <= _LARGEST_WINDOW_BYTES - sender.window:
                        break  # cut, or an error
                    sender.window += more
                    sender.granted_window += more
                    offset = stop
                    if not is_behind:
                        left -= 1
                        core.guard.count_frame("WINDOW_UPDATE")
                    is_behind = False
                    continue
                stream_id = core.highest_id + 2
                found = self._recognise(data, offset, stream_id)
                if found is None:
                    break
                head, head_bytes, more, nbytes, size = found
                stop = offset + nbytes + size
                if (
                    stop > end
                    or size + used > core.receive_window
                    or size > core.stream_window
                    or len(core.streams) >= core.max_streams
                    or core.is_refusing
                    or (more and more > _LARGEST_WINDOW_BYTES - sender.initial_window)
                ):
                    break
                if head is None:
                    head = self._decoder.known_otherwise(data[offset + _HEADER_BYTES : offset + head_bytes])
                    if head is None:
                        break
                    apart = self._decoder.fields_apart
                else:
                    apart = ()
                core.highest_id = stream_id
                left -= 2
                if not head.takes_whole or not self._begin(stream_id, head, apart, more, data, stop - size, stop):
                    head.takes_whole, self._decoder.kind = False, None
                    self._requests.begin(stream_id, head, apart, ended=False)
                    offset += head_bytes
                    break
                count += 1
                used += size
                offset = stop
                is_behind = True
        finally:
            if count:
                core.receive_window -= used
                core.give_back(used)
                if core.guard.spent:
                    core.guard.data_moved(count)
        return offset

    def _begin(
        self, stream_id: int, head: RequestHead, apart: Fields, more: int, data: bytes, start: int, stop: int
    ) -> bool:
        """Offer a request to the receiver; False if it was declined."""
        core = self._core
        streams = core.streams
        stream = streams[stream_id] = Stream(core, core.sender, stream_id, core.stream_window, False)
        stream.send_window += more
        if apart:
            stream.fields_apart = apart
        try:
            receiver = core.receiver.on_whole_request(stream, head, data, start, stop)
        except BaseException:  # whatever the user raised: the stream has no receiver to hear of its end
            core.reset_stream(stream, ErrorCode.INTERNAL_ERROR)
            core.receive_window -= stop - start
            core.give_back(stop - start)
            raise
        if receiver is None:
            del streams[stream_id]
            return False
        if stream_id in streams:  # it may be answered already
            stream.receiver = receiver
        return True

    def _recognise(self, data: bytes, offset: int, stream_id: int) -> _Frames | None:
        """The frames in front of a request's body; None if they are not the usual ones."""
        kind: _Kind | None = self._decoder.kind
        if kind is not None:
            form, mentions, found = kind
            if data.startswith(form % ((_PACK_U32(stream_id & _STREAM_BITS),) * mentions), offset):
                return found
        word, flags, head_id = _UNPACK(data, offset)
        head_bytes = _HEADER_BYTES + (word >> 8)
        if (
            word & 0xFF != _HEADERS
            or flags != _END_HEADERS
            or head_id != stream_id
            or head_bytes > _LONGEST_BLOCK_BYTES
            or offset + head_bytes + _HEADER_BYTES > len(data)
            or stream_id > _STREAM_BITS
        ):
            return None
        head = self._decoder.known.get(data[offset + _HEADER_BYTES : offset + head_bytes])
        if head is not None and not head.takes_whole:
            return None
        word, flags, other_id = _UNPACK(data, offset + head_bytes)
        nbytes, more = head_bytes + _HEADER_BYTES, 0
        if word == _WINDOW_WORD and other_id == stream_id and offset + nbytes + _UPDATE_BYTES <= len(data):
            more, word, flags, other_id = _UNPACK_UPDATE(data, offset + nbytes)
            nbytes += _UPDATE_BYTES
            if not more:
                return None  # an error
        size = word >> 8
        if word & 0xFF or flags != _END_STREAM or other_id != stream_id or not 0 < size <= _MOST_DATA_BYTES:
            return None  # DATA is 0
        found = head, head_bytes, more, nbytes, size
        if head is not None:
            if found == self._before:
                self._decoder.kind = _kind(found, data[offset : offset + nbytes])
            self._before = found
        return found


def _kind(found: _Frames, beginning: bytes) -> _Kind:
    """The kind of requests that begin like this one; the stream's number ends the header of each frame."""
    _, head_bytes, more, *_ = found
    ends = [_HEADER_BYTES, head_bytes + _HEADER_BYTES]
    if more:
        ends.append(ends[-1] + _UPDATE_BYTES)
    begins = [0, *ends[:-1]]
    constant = [escaped(beginning[begin : end - frames.U32.size]) for begin, end in zip(begins, ends, strict=True)]
    return _Kind(b"%b".join(constant) + b"%b", len(constant), found)
