"""Whole requests whose heads are known: taken at once, without a look at each of their frames.

In front of ``incoming`` for the requests that most clients of gRPC send: HEADERS, perhaps a WINDOW_UPDATE of the new stream, and DATA
that ends the stream. Often a WINDOW_UPDATE of the connection follows. Requests that differ in anything are left to ``incoming``,
and so is a request that breaks a rule.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from pybackend.frontend.http2 import frames
from pybackend.frontend.http2.core import ConnectionCore
from pybackend.frontend.http2.errors import ErrorCode
from pybackend.frontend.http2.header_block import escaped
from pybackend.frontend.http2.request_head import RequestHead
from pybackend.frontend.http2.stream import Stream

_LONGEST_BLOCK_BYTES: Final = 127
_MOST_DATA_BYTES: Final = frames.DEFAULT_FRAME_BYTES
_MOST_IN_A_ROW: Final = 8
_BEGINNING_BYTES: Final = 5
"""Length, type and flags of a frame."""

_BLOCKS: Final = {
    frames.FRAME_HEADER.pack(size << 8 | frames.HEADERS, frames.END_HEADERS, 0)[:_BEGINNING_BYTES]: (
        Struct(f">I{size}sIBI").unpack_from,
        frames.FRAME_HEADER_BYTES + size + frames.FRAME_HEADER_BYTES,
    )
    for size in range(1, _LONGEST_BLOCK_BYTES + 1)
}
"""By the beginning of HEADERS: how to read the rest of it and the header of the next frame, and the size of all that."""

_WINDOW_WORD: Final = 4 << 8 | frames.WINDOW_UPDATE
_UNPACK_UPDATE: Final = Struct(">IIBI").unpack_from
"""The payload of WINDOW_UPDATE, and the header of the next frame."""
_UNPACK_U32: Final = frames.U32.unpack_from
_PACK_U32: Final = frames.U32.pack
_STREAM_BITS, _LARGEST_WINDOW_BYTES = frames.STREAM_BITS, frames.LARGEST_WINDOW_BYTES
_UPDATE_BYTES: Final = 4 + frames.FRAME_HEADER_BYTES
"""The size of both, and of a whole WINDOW_UPDATE."""

_CONNECTION_UPDATE: Final = frames.FRAME_HEADER.pack(_WINDOW_WORD, 0, 0)


class _Found(NamedTuple):
    """The frames in front of a request's body.

    Attributes:
        more: by how much the client has opened the stream's window.
        nbytes: size of the frames, with the header of DATA.
    """

    head: RequestHead
    more: int
    nbytes: int
    size: int


class _Kind(NamedTuple):
    """All requests that differ in their stream and in their body only.

    Attributes:
        form: these frames as a format for bytes, in which ``%b`` stands for the stream's number.
        mentions: how often it has the number.
        found: these frames.
    """

    form: bytes
    mentions: int
    found: _Found


class WholeRequests:
    """Takes the whole requests of one client."""

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._decoder = core.decoder
        self._before: _Found | None = None

    def take(self, data: bytes, offset: int) -> int:
        """Take the whole requests that begin at ``offset``; returns the offset behind them.

        Their window updates are not counted as unproductive frames: a request gives more of these back when it ends.
        """
        core, decoder = self._core, self._decoder
        streams, sender, end = core.streams, core.sender, len(data)
        count = used = 0
        try:
            while offset < end and count < _MOST_IN_A_ROW:
                kind: _Kind | None = decoder.kind
                stream_id = core.highest_id + 2
                found: _Found | None
                if kind is not None and data.startswith(
                    kind.form % ((_PACK_U32(stream_id & _STREAM_BITS),) * kind.mentions), offset
                ):
                    found = kind.found
                else:
                    found = self._recognise(data, offset, stream_id)
                    if found is None:
                        break
                head, more, nbytes, size = found
                start = offset + nbytes
                stop = start + size
                if (
                    stop > end
                    or more > _LARGEST_WINDOW_BYTES - sender.initial_window
                    or size + used > core.receive_window
                    or size > core.stream_window
                    or len(streams) >= core.max_streams
                    or core.last_stream_accepted is not None
                    or core.is_closed
                ):
                    break
                stream = streams[stream_id] = Stream(core, sender, stream_id, core.stream_window, False)
                stream.send_window += more
                core.highest_id = stream_id
                try:
                    receiver = core.receiver.on_whole_request(stream, head, data, start, stop)
                except BaseException:  # whatever the user raised: the stream has no receiver to hear of its end
                    core.reset_stream(stream, ErrorCode.INTERNAL_ERROR)
                    count += 1
                    used += size
                    raise
                if receiver is None:
                    del streams[stream_id]
                    core.highest_id, head.takes_whole, decoder.kind = stream_id - 2, False, None
                    break
                if stream_id in streams:  # it may be answered already
                    stream.receiver = receiver
                count += 1
                used += size
                offset = stop
                if stop < end and data.startswith(_CONNECTION_UPDATE, stop):
                    offset = self._open_window(data, stop)
        finally:
            if count:
                core.receive_window -= used
                core.give_back(used)
                if core.guard.spent:
                    core.guard.data_moved(count)
        return offset

    def _recognise(self, data: bytes, offset: int, expected_id: int) -> _Found | None:
        """The frames in front of a request's body; None if the request is not whole, or not a usual one."""
        layout = _BLOCKS.get(data[offset : offset + _BEGINNING_BYTES])
        if layout is None or offset + layout[1] > len(data):
            return None
        unpack, nbytes = layout
        stream_id, block, word, flags, other_id = unpack(data, offset + _BEGINNING_BYTES)
        head = self._decoder.known.get(block)
        if head is None or not head.takes_whole or not stream_id == expected_id == other_id <= _STREAM_BITS:
            return None
        more = 0
        if word == _WINDOW_WORD and offset + nbytes + _UPDATE_BYTES <= len(data):
            more, word, flags, other_id = _UNPACK_UPDATE(data, offset + nbytes)
            nbytes += _UPDATE_BYTES
            if not more:
                return None  # an error
        size = word >> 8
        if word & 0xFF or flags != frames.END_STREAM or other_id != stream_id or not 0 < size <= _MOST_DATA_BYTES:
            return None  # DATA is 0
        found = _Found(head, more, nbytes, size)
        if found == self._before:
            self._decoder.kind = _kind(found, data[offset : offset + nbytes], len(block))
        self._before = found
        return found

    def _open_window(self, data: bytes, offset: int) -> int:
        """Use a WINDOW_UPDATE of the connection; returns the offset behind it, or the same one if it is cut or an error."""
        sender = self._core.sender
        stop = offset + _UPDATE_BYTES
        if stop <= len(data):
            (more,) = _UNPACK_U32(data, offset + frames.FRAME_HEADER_BYTES)
            if 0 < more <= _LARGEST_WINDOW_BYTES - sender.window:
                sender.window += more
                sender.granted_window += more
                return stop
        return offset


def _kind(found: _Found, beginning: bytes, block_bytes: int) -> _Kind:
    """The kind of requests that begin like this one; the stream's number ends the header of each frame."""
    ends = [frames.FRAME_HEADER_BYTES, frames.FRAME_HEADER_BYTES + block_bytes + frames.FRAME_HEADER_BYTES]
    if found.more:
        ends.append(ends[-1] + _UPDATE_BYTES)
    begins = [0, *ends[:-1]]
    constant = [escaped(beginning[begin : end - frames.U32.size]) for begin, end in zip(begins, ends, strict=True)]
    return _Kind(b"%b".join(constant) + b"%b", len(constant), found)
