"""Output of a connection: frames in order, and data that waits for windows and for its turn.

Small frames and small answers are appended to a list at once. Data that does not fit the windows, or lies in memory that is not
ours (views), waits in its stream's queue until :meth:`Sender.take` cuts it into frames, one per stream in turn, as
far as the windows and the caller's limit allow. So a large answer costs no memory beyond itself and delays no small one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from pybackend.http2 import frames
from pybackend.http2.floods import FloodGuard
from pybackend.http2.header_block import HeaderBlock

_JOINED_BYTES: Final = 4096
"""Shorter pieces are joined; longer ones are handed out as they are."""

_LARGEST_TURN_BYTES: Final = 64 * 1024
"""Of one stream, before the next one has its turn; peers accept frames of 16 KB by default. A stream without company has no such limit."""

MOST_DIRECT_BYTES: Final = 64 * 1024
"""Data that bypasses the queues between two calls of :meth:`Sender.take`."""

FORGIVEN_PER_FRAME: Final = 4
"""A peer may well update two windows for a frame of data, and ping."""

_UPDATE_TABLE_SIZE: Final = b"\x20"
"""The dynamic table gets size 0 (RFC 7541 section 6.3)."""


class SendingStream(Protocol):
    """The parts of a stream that the sender uses."""

    id: int
    in_line: bool
    send_window: int
    waiting_bytes: int

    def begin_turn(self, count: int) -> bool:
        """Count so much data as sent; returns whether it ends the stream."""

    def move_data(self, count: int, pieces: list[bytes | memoryview]) -> None:
        """Move so much data from the queue to a list."""

    def queue_is_empty(self) -> None:
        """All data was handed out."""

    def drop_queue(self) -> int:
        """Drop waiting data; returns its size."""


class Sender:
    """The sending half of a connection.

    Attributes:
        window: DATA that the connection's window still allows.
        granted_window: what ``window`` would be if nothing had been sent.
        initial_window: the window of a new stream.
        max_frame_bytes: the longest frame that the peer accepts.
        direct_bytes: data that has bypassed the queues since the output was last taken.
        waiting_bytes: data that waits in the queues of streams.
        ready: streams that have data and an open window, in the order of their turns.
        block_prefix: must precede the next header block.
    """

    __slots__ = (
        "_views",
        "block_prefix",
        "direct_bytes",
        "granted_window",
        "guard",
        "initial_window",
        "max_frame_bytes",
        "pieces",
        "ready",
        "waiting_bytes",
        "window",
    )

    def __init__(self, guard: FloodGuard) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.window = self.granted_window = frames.DEFAULT_WINDOW_BYTES
        self.initial_window = frames.DEFAULT_WINDOW_BYTES
        self.max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self.direct_bytes = 0
        self.waiting_bytes = 0
        self.block_prefix = b""
        self.guard = guard
        self.ready: deque[SendingStream] = deque()
        self._views = False

    def reply(self, piece: bytes) -> None:
        """Append an answer to a frame of the peer, which sends as many as it likes."""
        self.guard.count_reply()
        self.pieces.append(piece)

    def headers(self, stream_id: int, block: HeaderBlock, *, ends: bool) -> None:
        """Append a header block."""
        if block.fits and not self.block_prefix:
            self.pieces.append(
                b"".join((block.last if ends else block.first, frames.U32.pack(stream_id), block.encoded))
            )
            return
        prefix, self.block_prefix = self.block_prefix, b""
        self.pieces.append(block.frames(stream_id, self.max_frame_bytes, ends=ends, prefix=prefix))

    def limit_table(self) -> None:
        """The peer's decoder has shrunk its dynamic table. We use none, and say so in the next block (RFC 7541 section 4.2)."""
        self.block_prefix = _UPDATE_TABLE_SIZE

    def enqueue(self, stream: SendingStream) -> None:
        """Give a stream its turn, if it has something that may be sent and is not in line yet."""
        if not stream.in_line and stream.waiting_bytes and stream.send_window > 0:
            stream.in_line = True
            self.ready.append(stream)

    def forget(self, stream: SendingStream) -> None:
        """Drop what a stream has in its queue."""
        self.waiting_bytes -= stream.drop_queue()
        if stream.in_line:
            stream.in_line = False
            self.ready.remove(stream)

    def take(self, limit_bytes: int) -> list[bytes | memoryview]:
        """Return output in order; see ``Connection.take_output``."""
        if self.ready:
            self._let_streams_send(limit_bytes)
        self.guard.unsent_replies = self.direct_bytes = 0
        pieces = self.pieces
        if not pieces:
            return []
        self.pieces = []
        if not self._views:
            return [b"".join(pieces)] if len(pieces) > 1 else pieces
        self._views = False
        return _joined(pieces)

    def _let_streams_send(self, limit_bytes: int) -> None:
        """Each stream in turn, while the connection's window and the limit last."""
        ready, made = self.ready, 0
        turn_bytes = min(_LARGEST_TURN_BYTES, self.max_frame_bytes)
        while ready and made < limit_bytes and self.window > 0:
            stream = ready.popleft()
            stream.in_line = False
            if stream.send_window > 0:  # else the peer has made its window smaller meanwhile
                made += self._send_turn(stream, turn_bytes if ready else max(turn_bytes, limit_bytes - made))

    def _send_turn(self, stream: SendingStream, limit_bytes: int) -> int:
        """Send DATA frames of one stream, and its end if that was all; returns the bytes made."""
        total = left = min(self.window, stream.send_window, stream.waiting_bytes, limit_bytes)
        self.window -= total
        self.waiting_bytes -= total
        ends = stream.begin_turn(total)
        pieces, stream_id = self.pieces, stream.id
        while left:
            count = min(left, self.max_frame_bytes)
            left -= count
            flags = frames.END_STREAM if ends and not left else 0
            pieces.append(frames.HEADER.pack(count << 8, flags, stream_id))
            stream.move_data(count, pieces)
        self._views = True
        if self.guard.spent:
            self.guard.data_moved(FORGIVEN_PER_FRAME * -(-total // self.max_frame_bytes))
        if stream.waiting_bytes:
            self.enqueue(stream)
        else:
            stream.queue_is_empty()
        return total


def _joined(pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Join runs of short pieces."""
    made: list[bytes | memoryview] = []
    run: list[bytes | memoryview] = []
    for piece in pieces:
        if len(piece) < _JOINED_BYTES:
            run.append(piece)
            continue
        if run:
            made.append(b"".join(run))
            run = []
        made.append(piece)
    if run:
        made.append(b"".join(run))
    return made
