"""One end of the socket between the engine's process and a front end's, on the event loop: frames of many messages.

A frame is a msgpack array of messages that were posted in one turn of the loop: as many as fit into a datagram
(SOCK_SEQPACKET) of up to 64 KB. A larger message is a frame by itself, of several datagrams: the first byte of each
says whether more of the frame follows. File descriptors travel with the first datagram of a frame.

The engine does not trust what it reads here: frames are bounded, messages are checked while they are decoded, those
that take long wait for another turn of the loop, and descriptors are not taken.
"""

import array
import asyncio
import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from pybackend.ipc.unwanted_descriptors import close, receiver_of, refuse_descriptors
from pybackend_wire.errors import RemoteProtocolError

log = logging.getLogger(__name__)

_PART_BYTES = 64 * 1024
"""Most bytes of a datagram. The kernel finds memory for one of this size even when memory is in pieces."""

_SOCKET_BYTES = 1024 * 1024
"""Room in a socket for a peer that is busy; the kernel may allow less."""

MOST_MESSAGES = 2048
"""Most messages in a frame: each takes many times more memory than its bytes. Further messages begin another frame."""

MOST_FRAME_BYTES = 64 * 1024 * 1024
"""Most bytes of a frame, and so of a message; tensors of any size lie in shared memory."""

MOST_BACKLOG_BYTES = 256 * 1024 * 1024
"""Most bytes that may wait for a peer that does not read: then the channel ends."""

MOST_DESCRIPTORS = 32
"""Most file descriptors with one frame."""

_LAST, _MORE = 0, 1

_LATER = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a socket that accepts nothing now but will later."""

_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * _DESCRIPTOR_BYTES)

_ARRAY = b"\xdd%b"
"""What precedes the messages of a frame: the beginning of a msgpack array, and their number."""

_HEAD_BYTES = 6

_encoder = msgspec.msgpack.Encoder()
_encode, _encode_into = _encoder.encode, _encoder.encode_into

OnMessages = Callable[[list[Any], list[int]], list[Any]]
"""Handles the messages of a frame, and takes the descriptors that came with it, which it must close.

Returns the messages that have to wait for another turn of the loop. Nothing else is read before.
"""

Take = Callable[[list[Any], list[int]], tuple[list[Any], list[int]]]
"""Handles those messages of a frame that cannot wait for their turn; returns the others with their descriptors."""

OnEnd = Callable[[RemoteProtocolError | None], None]
"""Called once: the peer has closed its end, or it breaks the rules."""

Decode = Callable[[memoryview], list[Any]]


class Decoders(NamedTuple):
    """Functions that decode and check frames."""

    one: Decode  # of one message
    many: Decode


def decoders(message: Any) -> Decoders:
    """The decoders of frames of messages of this type, usually a union of tagged structs."""
    one, many = (
        msgspec.msgpack.Decoder(Annotated[list[message], Meta(max_length=most)]).decode for most in (1, MOST_MESSAGES)
    )
    return Decoders(one, many)


_Part = tuple[bytes, list[int]]
"""A datagram, and the descriptors that travel with it."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The end of the engine, to which nobody can send descriptors, and that of a front end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
    refuse_descriptors(ours)
    return ours, theirs


class Channel:
    """Frames to and from the peer. Nothing here ever waits for it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        decode: Decoders,
        on_messages: OnMessages,
        on_end: OnEnd,
        *,
        takes_descriptors: bool = False,
        most_frame_bytes: int = MOST_FRAME_BYTES,
    ) -> None:
        sock.setblocking(False)
        self.loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._decode = decode
        self._on_messages = on_messages
        self._on_end = on_end
        self._received: list[int] = []
        self._receive = self._receive_with_descriptors if takes_descriptors else receiver_of(sock)
        self._buffer = bytearray(_PART_BYTES)
        self._view = memoryview(self._buffer)
        self._parts = bytearray()
        self._frame = bytearray()
        self._most_frame_bytes = most_frame_bytes
        self._messages: list[Struct] = []
        self._descriptors: list[int] = []
        self._tellers: list[int] = []
        self._backlog: deque[_Part] = deque()
        self._ahead: deque[tuple[list[Any], list[int]]] = deque()
        self.backlog_bytes = 0  # how much was sent that the socket has not accepted yet
        self._waiting: list[Callable[[], None]] = []
        self.is_open = True  # False after the end of file, a broken rule, or :meth:`close`
        loop.add_reader(self._descriptor, self._read)

    # Sending

    def post(self, message: Struct) -> None:
        """Add a message to this turn's frame; does nothing once the channel is closed."""
        messages = self._messages
        if messages:
            messages.append(message)
            if len(messages) == MOST_MESSAGES:
                self.flush()
        elif self.is_open:
            messages.append(message)
            self.loop.call_soon(self.flush)

    def post_with(self, message: Struct, descriptor: int) -> None:
        """Add a message that tells of a file descriptor, which is sent and then closed here.

        The receiver gets the descriptors of a frame in the order of such messages.
        """
        if not self.is_open:
            os.close(descriptor)
            return
        if len(self._descriptors) == MOST_DESCRIPTORS:
            self.flush()
        self._tellers.append(len(self._messages))
        self._descriptors.append(descriptor)
        self.post(message)

    def flush(self) -> None:
        """Send the frame now."""
        messages, descriptors = self._messages, self._descriptors
        if not messages or not self.is_open:
            return
        frame = self._frame
        try:
            _encode_into(messages, frame, 1)
        except (ValueError, OverflowError, TypeError):
            self._flush_apart()
            return
        if len(frame) > _PART_BYTES:
            self._flush_apart()
            return
        frame[0] = _LAST
        messages.clear()
        self._tellers.clear()
        if self._backlog or descriptors:
            self._descriptors = []
            self._keep([(bytes(frame), descriptors)], None)
            return
        try:
            self._socket.send(frame)
        except OSError as error:
            self._keep([(bytes(frame), [])], error)

    def _flush_apart(self) -> None:
        """Send messages in several frames: they are too long together, or one of them cannot be sent."""
        messages, self._messages = self._messages, []
        descriptors, self._descriptors = self._descriptors, []
        tellers, self._tellers = self._tellers, []
        self._frame = bytearray()
        of_message = dict(zip(tellers, descriptors, strict=True))
        parts: list[_Part] = []
        frame: list[bytes] = []
        told: list[int] = []
        size = _HEAD_BYTES
        for number, message in enumerate(messages):
            own = [of_message[number]] if number in of_message else []
            try:
                encoded = _encode(message)
            except (ValueError, OverflowError, TypeError):  # others must not wait for it
                log.exception("a message between the server's processes cannot be sent")
                _close_all(own)
                continue
            if frame and size + len(encoded) > _PART_BYTES:
                parts += _parts(frame, told)
                frame, size, told = [], _HEAD_BYTES, []
            frame.append(encoded)
            size += len(encoded)
            told += own
        if frame:
            parts += _parts(frame, told)
        self._keep(parts, None)

    def _keep(self, parts: Sequence[_Part], error: OSError | None) -> None:
        """Send parts as soon as the socket accepts them."""
        if error is not None and error.errno not in _LATER:
            return  # reading reports the end, after the peer's last messages
        was_empty = not self._backlog
        for part in parts:
            self._backlog.append(part)
            self.backlog_bytes += len(part[0])
        if was_empty:
            self.loop.add_writer(self._descriptor, self._writable)
            if error is None:
                self._writable()
        if self.backlog_bytes > MOST_BACKLOG_BYTES:
            self._end(RemoteProtocolError(f"{self.backlog_bytes} bytes wait for it, and it does not read"))

    def _writable(self) -> None:
        backlog = self._backlog
        while backlog:
            part, descriptors = backlog[0]
            try:
                if descriptors:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                    self._socket.sendmsg([part], [rights])
                else:
                    self._socket.send(part)
            except OSError as error:
                if error.errno in _LATER:
                    return
            _close_all(descriptors)
            backlog.popleft()
            self.backlog_bytes -= len(part)
        self.loop.remove_writer(self._descriptor)
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            self.loop.call_soon(callback)

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call this once the socket has accepted everything; never if the channel ends before."""
        if self.backlog_bytes:
            self._waiting.append(callback)
        else:
            self.loop.call_soon(callback)

    # Receiving

    def _receive_with_descriptors(self, buffer: memoryview) -> int:
        count, ancillary, _, _ = self._socket.recvmsg_into([buffer], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        for _, _, data in ancillary:
            received = array.array("i")
            received.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
            self._received.extend(received)
        return count

    def _read(self) -> None:
        """Read one datagram, and handle the frame that it completes."""
        if self._ahead:
            return  # these come first, in a call that is due
        messages = self._next()
        if messages is not None:
            descriptors, self._received = self._received, []
            self._handle(messages, descriptors)

    def _next(self) -> list[Any] | None:
        """Read one datagram; the messages of the frame that it completes."""
        view = self._view
        try:
            count = self._receive(view)
        except BlockingIOError:
            return None
        except RemoteProtocolError as error:
            self._end(error)
            return None
        except OSError:
            count = 0
        if not count:
            self._end(None)
            return None
        decode = self._decode.many
        if self._buffer[0] == _LAST and not self._parts:
            frame = view[1:count]
        else:
            decode = self._decode.one
            self._parts += view[1:count]
            if len(self._parts) > self._most_frame_bytes:
                self._end(RemoteProtocolError(f"a frame has more than {self._most_frame_bytes} bytes"))
                return None
            if self._buffer[0] != _LAST:
                return None
            frame, self._parts = memoryview(self._parts), bytearray()
        try:
            return decode(frame)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._end(RemoteProtocolError(f"a frame does not decode: {error}"))
            return None

    def look_ahead(self, take: Take, done: Callable[[], bool] | None = None) -> None:
        """Show the frames that are there to ``take`` before their turn; what it leaves comes in its turn.

        If ``done`` is given, the process does nothing else until it returns True, or the channel has ended.
        """
        while self.is_open and not (done is not None and done()):
            messages = self._next()
            if messages is not None:
                descriptors, self._received = self._received, []
                rest = take(messages, descriptors)
                if not self._ahead:
                    self.loop.call_soon(self._handle_ahead)
                self._ahead.append(rest)
            elif done is None:
                return
            elif self.is_open:
                self._wait()

    def _wait(self) -> None:
        """Wait until there is something to read."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN | (select.POLLOUT if self._backlog else 0))
        if any(events & select.POLLOUT for _, events in poll.poll()):
            self._writable()

    def _handle_ahead(self) -> None:
        while self._ahead and self.is_open and self._handle(*self._ahead.popleft()):
            pass

    def _handle(self, messages: list[Any], descriptors: list[int]) -> bool:
        """Have messages handled; False if some of them wait for another turn."""
        try:
            rest = self._on_messages(messages, descriptors)
            if rest and self.is_open:
                self._ahead.appendleft((rest, descriptors))
                self.loop.call_soon(self._handle_ahead)
                return False
        except RemoteProtocolError as error:
            self._end(error)
        except Exception:  # the event loop would only log it, and those who wait for answers would wait for ever
            log.exception("a message between the server's processes could not be handled")
            self._end(RemoteProtocolError("a message could not be handled, see the log"))
        return True

    # The end

    def fail(self, reason: str) -> None:
        """End the channel: the peer breaks the rules."""
        self._end(RemoteProtocolError(reason))

    def close(self) -> None:
        """Stop reading and writing; the peer sees the end of file."""
        if not self.is_open:
            return
        self.is_open = False
        self.loop.remove_reader(self._descriptor)
        if self._backlog:
            self.loop.remove_writer(self._descriptor)
        _close_all(self._descriptors)
        for received in (self._received, *[descriptors for _, descriptors in self._ahead]):
            _close_all(received)
        self._ahead.clear()
        for _, descriptors in self._backlog:
            _close_all(descriptors)
        self._messages.clear()
        self._tellers.clear()
        self._backlog.clear()
        self._waiting.clear()
        self.backlog_bytes = 0
        close(self._socket)
        # Its owner refers to it: without a cut, both and the buffers would live until the garbage collector runs.
        del self._on_messages, self._on_end

    def _end(self, error: RemoteProtocolError | None) -> None:
        if self.is_open:
            on_end = self._on_end
            self.close()
            on_end(error)


def _parts(messages: list[bytes], descriptors: list[int]) -> list[_Part]:
    """The datagrams of a frame."""
    size = _PART_BYTES - 1
    frame = b"".join((_ARRAY % len(messages).to_bytes(4, "big"), *messages))
    starts = range(0, len(frame), size)
    return [
        (
            b"%c%b" % (_MORE if start + size < len(frame) else _LAST, frame[start : start + size]),
            descriptors if not start else [],
        )
        for start in starts
    ]


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
