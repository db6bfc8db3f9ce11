"""One stream: a request and its answer (RFC 9113 section 5.1).

And the output of all streams of a connection, in turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, Protocol

from pybackend_http2 import frames
from pybackend_http2.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from pybackend_http2.floods import FloodGuard
from pybackend_http2.header_block import AnswerForm, HeaderBlock
from pybackend_http2.request_head import Fields

_FRAME_HEADER, _U32 = frames.FRAME_HEADER, frames.U32

_JOINED_BYTES: Final = 4096
"""Shorter pieces are joined; longer ones are handed out as they are."""

_LARGEST_TURN_BYTES: Final = 64 * 1024
"""Of one stream, before the next one has its turn; peers accept frames of 16 KB by default. A stream without company
has no such limit."""

MOST_DIRECT_BYTES: Final = 64 * 1024
"""Data that bypasses the queues between two calls of :meth:`Sender.take`."""

FORGIVEN_PER_FRAME: Final = 4
"""A peer may well update two windows for a frame of data, and ping."""

_UPDATE_TABLE_SIZE: Final = b"\x20"
"""The dynamic table gets size 0 (RFC 7541 section 6.3)."""


class StreamState(Enum):
    """The states of RFC 9113 section 5.1 that a stream of a server can have once it exists."""

    OPEN = "open"
    HALF_CLOSED_REMOTE = "half-closed (remote)"
    HALF_CLOSED_LOCAL = "half-closed (local)"
    CLOSED = "closed"


class StreamReceiver:
    """Hears about one stream; these methods do nothing.

    They may call any method of the stream and of its connection except ``receive``.
    """

    __slots__ = ()

    def on_data(self, payload: bytes | memoryview, ended: bool, /) -> None:
        """A piece of the request's body has arrived.

        A memoryview is a part of the buffer that was given to ``receive``: if that is used again, it is valid only
        during this call.
        """

    def on_trailers(self, trailers: Fields, /) -> None:
        """The request has ended with trailers."""

    def on_reset(self, code: int, error: RemoteProtocolError | None, /) -> None:
        """The stream has gone before both sides had ended it. Nothing more is heard of it, and sends do nothing.

        The code is the peer's if it reset the stream. The error is the rule that it broke on the stream or its
        connection, if it did.
        """

    def on_drained(self) -> None:
        """Data that had to wait has all been handed out by ``take_output``, and the response may go on."""


GONE: Final = StreamReceiver()
"""The receiver of a stream that has ended. It has no other one then: they would keep each other in memory."""


class StreamOwner(Protocol):
    """The parts of a connection that a stream uses."""

    def has(self, stream: Stream) -> bool:
        """Whether the stream has not ended yet."""

    def stream_finished(self, stream: Stream) -> None:
        """Both sides have ended the stream."""

    def reset_stream(self, stream: Stream, code: int) -> None:
        """The user resets the stream."""

    def give_back(self, count: int) -> None:
        """Let the client send ``count`` more bytes on the connection."""


class Stream:
    """A stream that a client has opened. Made by the connection; its user answers here.

    Once a stream has gone (``on_reset``, or :meth:`reset`), sends do nothing: answers that are already on their way
    need no check.

    Attributes:
        id: its number.
        receiving: the client has not ended its request.
        head_sent: the head of the answer was sent.
        sending: the answer may go on; False once its end was queued, and after a reset.
        waiting_bytes: data of the answer that waits for windows or for ``take_output``.
        sent_bytes: data of the answer that was handed out.
        lent_bytes: see :meth:`lend`.
        fields_apart: those that the request's head lacks because they vary, see ``Use.READS_APART``; the head may as
            well have them.
    """

    # Defaults of the class instead of slots that every stream fills: making a stream is a good part of a small call.
    receiver: StreamReceiver = GONE
    sending = True
    head_sent = False
    content_left: int | None = None
    waiting_bytes = 0
    sent_bytes = 0
    sent_when_last_checked = -1
    in_line = False
    lent_bytes = 0
    fields_apart: Fields = ()
    _credit = 0
    _queue: deque[memoryview] | None = None
    _trailers: HeaderBlock | None = None

    def __init__(self, owner: StreamOwner, sender: Sender, stream_id: int, window: int, receiving: bool) -> None:
        self.id = stream_id
        self.receiving = receiving
        self.receive_window = self._initial_window = window
        self.send_window = sender.initial_window
        self._owner = owner
        self._sender = sender

    def __repr__(self) -> str:
        return f"Stream({self.id}, {self.state.value})"

    @property
    def state(self) -> StreamState:
        """The state as the peer will know it once all queued output has been sent."""
        if self.receiving:
            return StreamState.OPEN if self.sending else StreamState.HALF_CLOSED_LOCAL
        return StreamState.HALF_CLOSED_REMOTE if self.sending else StreamState.CLOSED

    # --- answers ---

    def respond(self, head: HeaderBlock, body: bytes, trailers: HeaderBlock) -> None:
        """Send a whole answer, which has not begun: the fast way for small ones."""
        size = len(body)
        if not self._takes_whole(size):
            self.send_headers(head)
            self.send_data(body)
            self.send_trailers(trailers)
            return
        stream_id = self.id
        packed = _U32.pack(stream_id)
        data = _FRAME_HEADER.pack(size << 8, 0, stream_id)
        self._sender.pieces.append(
            b"".join((head.first, packed, head.encoded, data, body, trailers.last, packed, trailers.encoded))
        )
        self._responded(size)

    def respond_in(self, form: AnswerForm, size: int, pieces: Iterable[bytes | memoryview]) -> bool:
        """Send a whole answer that repeats a form: the fastest way of all.

        False if nothing was sent: it has begun, or must wait.

        The size is that of the data, with the form's own part; the pieces, which vary in it, are copied.
        """
        if not self._takes_whole(size):
            return False
        stream_id = self.id
        packed = _U32.pack(stream_id)
        self._sender.pieces.append(form.whole % (packed, _FRAME_HEADER.pack(size << 8, 0, stream_id), *pieces, packed))
        self._responded(size)
        return True

    def _takes_whole(self, size: int) -> bool:
        """Whether an answer with data of this size can go out at once."""
        sender = self._sender
        return not (
            size > self.send_window
            or size > sender.window
            or size > sender.max_frame_bytes
            or size + sender.direct_bytes > MOST_DIRECT_BYTES
            or sender.ready
            or sender.block_prefix
            or self.head_sent
            or not self.sending
        )

    def _responded(self, size: int) -> None:
        sender = self._sender
        sender.direct_bytes += size
        sender.window -= size
        self.send_window -= size
        self.sent_bytes = size
        self.head_sent = True
        self.sending = False
        if not self.receiving:
            self._owner.stream_finished(self)

    def send_headers(self, head: HeaderBlock, *, end: bool = False) -> None:
        """Send the head of an answer; a LocalProtocolError if it was sent before."""
        if not self._may_send():
            return
        if self.head_sent:
            raise LocalProtocolError(f"stream {self.id}: the head of the answer was sent before")
        self._sender.headers(self.id, head, ends=end)
        self.head_sent = True
        if end:
            self._sending_ended()

    def send_data(self, data: bytes | memoryview) -> bool:
        """Send a piece of the body.

        Short ``bytes`` go out at once if the windows allow it; everything else waits in the queue.

        A memoryview is not copied: its memory must stay as it is until ``on_drained`` and then until the transport has
        sent what ``take_output`` handed out. After a reset the queue is dropped, and only pieces that were handed out
        count.

        Returns False if data waits; ``on_drained`` follows unless the stream is reset. It is a LocalProtocolError if no
        head was sent, or if the answer has ended.
        """
        if not self._may_send():
            return True
        if not self.head_sent:
            raise LocalProtocolError(f"stream {self.id}: data before the head of the answer")
        sender, size = self._sender, len(data) if type(data) is bytes else memoryview(data).nbytes
        if not size:
            return not self.waiting_bytes
        if (
            type(data) is bytes
            and size <= self.send_window
            and size <= sender.window
            and size <= sender.max_frame_bytes
            and size + sender.direct_bytes <= MOST_DIRECT_BYTES
            and not self.waiting_bytes
            and not sender.ready
        ):
            sender.pieces.append(_FRAME_HEADER.pack(size << 8, 0, self.id) + data)
            sender.direct_bytes += size
            sender.window -= size
            self.send_window -= size
            self.sent_bytes += size
            if sender.guard.spent:
                sender.guard.data_moved(FORGIVEN_PER_FRAME)
            return True
        self._queue_data(data)
        return False

    def send_trailers(self, trailers: HeaderBlock) -> None:
        """End the answer with trailers, after all of its data.

        Trailers pass every window; errors are those of :meth:`send_data`.
        """
        if not self._may_send():
            return
        if not self.head_sent:
            raise LocalProtocolError(f"stream {self.id}: trailers before the head of the answer")
        if self.waiting_bytes:
            self._trailers = trailers
            self.sending = False
            return
        self._sender.headers(self.id, trailers, ends=True)
        self._sending_ended()

    def reset(self, code: int = ErrorCode.CANCEL) -> None:
        """End the stream at once in both directions, and drop what waits. ``on_reset`` is not called.

        With NO_ERROR after a whole answer, it asks the client to stop sending its request (RFC 9113 section 8.1); data
        that still waits is lost, so wait for ``on_drained``.
        """
        self._owner.reset_stream(self, code)

    # --- flow control of the request ---

    def give_back(self, count: int) -> None:
        """Allow the client to send ``count`` more bytes, on this stream and on the connection.

        All bytes that ``on_data`` delivered must be given back once, even after the stream has ended: until then they
        count against the connection's window.
        """
        credit = self._credit + count
        if credit + self.receive_window > self._initial_window:
            raise LocalProtocolError(f"stream {self.id}: more bytes are given back than were received")
        self._credit = credit
        if self.receiving and credit * 2 >= self._initial_window:
            self._announce_credit()
        if self.lent_bytes:
            lent = min(count, self.lent_bytes)
            self.lent_bytes -= lent
            count -= lent
        self._owner.give_back(count)

    def lend(self, count: int) -> None:
        """Allow the client to send ``count`` more bytes on the connection, but not on this stream: for bytes that the user keeps.

        They must still be given back: then the stream may go on too. So a stream that pauses holds up no other one. The user bounds the
        memory of all streams that pause: each can have as much as its window.
        """
        self.lent_bytes += count
        self._owner.give_back(count)

    def change_receive_window(self, difference: int) -> None:
        """Our SETTINGS_INITIAL_WINDOW_SIZE has changed by ``difference``."""
        self.receive_window += difference
        self._initial_window += difference
        if self.receiving and self._credit * 2 >= self._initial_window:
            self._announce_credit()  # nothing else may: the client can have spent all, and have got all of it back

    # --- between stream, sender and connection ---

    def begin_turn(self, count: int) -> None:
        """Count ``count`` bytes of data as sent."""
        self.send_window -= count
        self.waiting_bytes -= count
        self.sent_bytes += count

    def move_data(self, count: int, pieces: list[bytes | memoryview]) -> None:
        queue = self._queue
        assert queue is not None
        while count:
            view = queue[0]
            if len(view) <= count:
                pieces.append(queue.popleft())
                count -= len(view)
            else:
                pieces.append(view[:count])
                queue[0] = view[count:]
                return

    def queue_is_empty(self) -> None:
        """All data was handed out: send the trailers, if they waited, and tell the receiver."""
        self._queue = None
        receiver = self.receiver  # the stream has none when it has ended
        trailers, self._trailers = self._trailers, None
        if trailers is not None:
            self._sender.headers(self.id, trailers, ends=True)
            self._sending_ended()
        receiver.on_drained()

    def drop_queue(self) -> int:
        """Drop waiting data; returns its size."""
        dropped, self.waiting_bytes = self.waiting_bytes, 0
        self._queue = self._trailers = None
        return dropped

    def _announce_credit(self) -> None:
        credit, self._credit = self._credit, 0
        if credit:
            self.receive_window += credit
            self._sender.pieces.append(frames.window_update(self.id, credit))

    def _queue_data(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        if self._queue is None:
            self._queue = deque()
        self._queue.append(view)
        self.waiting_bytes += view.nbytes
        self._sender.waiting_bytes += view.nbytes
        self._sender.enqueue(self)

    def _may_send(self) -> bool:
        """Whether the stream still exists.

        Raises:
            LocalProtocolError: it does, but the answer has ended.
        """
        if self.sending:
            return True
        if self._owner.has(self):
            raise LocalProtocolError(f"stream {self.id}: the answer has ended")
        return False

    def _sending_ended(self) -> None:
        self.sending = False
        if not self.receiving:
            self._owner.stream_finished(self)


class Sender:
    """The sending half of a connection: frames in order, and data that waits for windows and for its turn.

    Small frames and small answers are appended to a list at once. Data that does not fit the windows, or lies in memory
    that is not ours (views), waits in its stream's queue until :meth:`take` cuts it into frames, one per stream in
    turn, as far as the windows and the caller's limit allow. So a large answer costs no memory beyond itself and delays
    no small one.

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
        self.ready: deque[Stream] = deque()
        self._views = False

    def reply(self, piece: bytes) -> None:
        """Append an answer to a frame of the peer, which sends as many as it likes."""
        self.guard.count_reply()
        self.pieces.append(piece)

    def headers(self, stream_id: int, block: HeaderBlock, *, ends: bool) -> None:
        prefix, self.block_prefix = self.block_prefix, b""
        if prefix:
            flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
            self.pieces.append(frames.frame(frames.HEADERS, flags, stream_id, prefix + block.encoded))
            return
        self.pieces.append(b"".join((block.last if ends else block.first, _U32.pack(stream_id), block.encoded)))

    def limit_table(self) -> None:
        """The peer's decoder has shrunk its dynamic table.

        We use none, and say so in the next block (RFC 7541 section 4.2).
        """
        self.block_prefix = _UPDATE_TABLE_SIZE

    def enqueue(self, stream: Stream) -> None:
        """Give a stream its turn, if it has something that may be sent and is not in line yet."""
        if not stream.in_line and stream.waiting_bytes and stream.send_window > 0:
            stream.in_line = True
            self.ready.append(stream)

    def forget(self, stream: Stream) -> None:
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

    def _send_turn(self, stream: Stream, limit_bytes: int) -> int:
        """Send DATA frames of one stream, and its trailers if that was all; returns the bytes made."""
        total = left = min(self.window, stream.send_window, stream.waiting_bytes, limit_bytes)
        self.window -= total
        self.waiting_bytes -= total
        stream.begin_turn(total)
        pieces, stream_id = self.pieces, stream.id
        while left:
            count = min(left, self.max_frame_bytes)
            left -= count
            pieces.append(_FRAME_HEADER.pack(count << 8, 0, stream_id))
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
