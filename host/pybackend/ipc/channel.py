"""The host's end of a stub's control socket, on the event loop: one frame out per turn, frames in as they arrive."""

import array
import asyncio
import errno
import fcntl
import json
import logging
import os
import socket
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pybackend.ipc.stub_messages import Message, decode
from pybackend.ipc.unwanted_descriptors import close, receiver_of
from pybackend.loop_turn import loop_turn_of
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import HEADER, MOST_DESCRIPTORS, Frame, FrameDecoder
from pybackend_wire.host_messages import Attach, FromHost, Join, encoded
from pybackend_wire.messages import HostMessage

log = logging.getLogger(__name__)

_LATER = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a socket that accepts nothing now but will later. Descriptors in flight count per user: other processes may
have sent too many."""

_TAIL_ALIGNMENT_BYTES = 16
"""Alignment of malloc for the stub's copy of a tail: compiled code may refuse arrays that are not aligned."""
_ZEROS = bytes(_TAIL_ALIGNMENT_BYTES)
_EXECUTE = int(HostMessage.EXECUTE)

_encode_msgpack = msgspec.msgpack.Encoder().encode

OnMessages = Callable[[list[Message], bytearray], None]
OnEnd = Callable[[RemoteProtocolError | None], None]

MESSAGES_AT_ONCE = 256
"""About how many messages of one stub are handled in a turn of the loop. Usually there are only a few; a model that
calls others without pause must leave time for other work."""

MOST_BACKLOG_BYTES = 256 * 1024 * 1024
"""Most bytes that may wait for a stub that does not read. Only one that asks without end and never reads gets there."""


class _SocketWriter:
    """Bytes and descriptors on their way to a stub.

    Bytes that the socket does not accept at once are kept and sent when it drains; the scheduler's sending limits bound
    their number.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._backlog = bytearray()
        self._descriptors: list[int] = []

    @property
    def backlog_bytes(self) -> int:
        return len(self._backlog)

    def attach(self, descriptors: Sequence[int]) -> None:
        """Send duplicates of descriptors with the next bytes; all of them, or none if this process has none left."""
        before = len(self._descriptors)
        try:
            self._descriptors += map(os.dup, descriptors)
        except OSError:
            for descriptor in self._descriptors[before:]:
                os.close(descriptor)
            del self._descriptors[before:]
            raise

    def write(self, data: bytes) -> int:
        """Send bytes; returns how many the socket has not accepted so far."""
        if not self._backlog:
            try:
                sent = self._send_with_descriptors(data) if self._descriptors else self._socket.send(data)
            except OSError as error:
                sent = _sent_despite(error, data)
            if sent == len(data):
                return 0
            self._loop.add_writer(self._descriptor, self._writable)
            data = data[sent:]
        self._backlog += data
        return len(self._backlog)

    def close(self) -> None:
        if self._backlog:
            self._loop.remove_writer(self._descriptor)
        self._close_descriptors()

    def _writable(self) -> None:
        try:
            sent = self._send_with_descriptors(self._backlog) if self._descriptors else self._socket.send(self._backlog)
        except OSError as error:
            sent = _sent_despite(error, self._backlog)
        del self._backlog[:sent]
        if not self._backlog:
            self._loop.remove_writer(self._descriptor)

    def _send_with_descriptors(self, data: bytes | bytearray) -> int:
        """Send as much as the socket accepts; each group of descriptors but the last travels with a single byte."""
        sent = 0
        with memoryview(data) as view:
            while self._descriptors:
                group = self._descriptors[:MOST_DESCRIPTORS]
                end = len(data) if len(group) == len(self._descriptors) else sent + 1
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", group))
                try:
                    sent += self._socket.sendmsg([view[sent:end]], [rights])
                except OSError as error:
                    if error.errno in _LATER:
                        break
                    raise
                self._close_descriptors(len(group))
        return sent

    def _close_descriptors(self, count: int | None = None) -> None:
        for descriptor in self._descriptors[:count]:
            os.close(descriptor)
        del self._descriptors[:count]


def _sent_despite(error: OSError, data: bytes | bytearray) -> int:
    """0 if the socket may accept data later, else all of it: reading reports the end, after the stub's last messages."""
    return 0 if error.errno in _LATER else len(data)


class StubChannel:
    """Frames to and from one stub.

    Messages posted in one turn of the loop, or while one frame is handled, leave in one frame. Nothing here ever waits
    for the stub.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, on_messages: OnMessages, on_end: OnEnd
    ) -> None:
        self._loop = loop
        self._turn = loop_turn_of(loop)
        self._socket = sock
        self._receive = receiver_of(sock)
        self._descriptor = sock.fileno()
        self._on_messages = on_messages
        self._on_end = on_end
        self.codec = "json"  # encodes and decodes from the next frame on
        self._decoder = FrameDecoder()
        self.next_frame = 1  # the number of the frame in which a message leaves that is posted now
        self._messages: list[Any] = []
        self._tail: list[Any] = []
        self._tail_bytes = 0
        self._writer = _SocketWriter(loop, sock)
        self._arrived: deque[Frame] = deque()
        self.is_open = True  # False after the end of file, a protocol error, or :meth:`close`
        self._draining = False
        loop.add_reader(self._descriptor, self._read)

    @property
    def backlog_bytes(self) -> int:
        return self._writer.backlog_bytes

    @property
    def has_unread(self) -> bool:
        """Whether posted bytes are still unread by the stub; False once the channel is closed."""
        if not self.is_open:
            return False
        if self._messages or self._writer.backlog_bytes:
            return True
        unread = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, unread)
        return unread[0] > 0

    def post(self, message: FromHost) -> None:
        """Add a message to this turn's frame; does nothing once the channel is closed."""
        self._post(encoded(message))

    def post_execute(self, execution: int, requests: Sequence[Any]) -> None:
        """Add an :class:`~pybackend_wire.host_messages.Execute` to this turn's frame."""
        messages = self._messages
        if messages:
            messages.append((_EXECUTE, execution, requests))
        else:
            self._post((_EXECUTE, execution, requests))

    def _post(self, fields: tuple[Any, ...]) -> None:
        if not self.is_open:
            return
        if not self._messages:
            self._turn.soon(self.flush)
        self._messages.append(fields)

    def post_attach(self, message: Attach | Join, *descriptors: int) -> None:
        """Add a message to this turn's frame, with duplicates of descriptors: the originals may be closed.

        Raises:
            OSError: this process has no descriptors left; the message is not posted.
        """
        if self.is_open:
            self._writer.attach(descriptors)
            self.post(message)

    def append_tail(self, data: Any) -> int:
        """Add bytes to the tail of this turn's frame, aligned for any array element; returns their offset there."""
        offset = self._tail_bytes
        gap = -offset % _TAIL_ALIGNMENT_BYTES
        if gap:
            self._tail.append(_ZEROS[:gap])
            offset += gap
        self._tail.append(data)
        self._tail_bytes = offset + len(data)
        return offset

    def flush(self) -> None:
        if not self._messages or not self.is_open:
            return
        metadata = _encode_msgpack(self._messages) if self.codec == "msgpack" else _encode_json(self._messages)
        header = HEADER.pack(len(metadata), self._tail_bytes)
        data = b"".join((header, metadata, *self._tail)) if self._tail else header + metadata
        self.next_frame += 1
        self._messages.clear()
        self._tail.clear()
        self._tail_bytes = 0
        backlog_bytes = self._writer.write(data)
        if backlog_bytes > MOST_BACKLOG_BYTES:
            self._end(RemoteProtocolError(f"{backlog_bytes} bytes wait for the stub, which does not read"))

    def close(self) -> None:
        """Stop reading and writing; the stub sees the end of file."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._descriptor)
            self._arrived.clear()
            self._messages.clear()
            self._writer.close()
            close(self._socket)
            # Its owner refers to it: without a cut, both and the buffer would live until the garbage collector runs.
            del self._on_messages, self._on_end

    def fail(self, reason: str) -> None:
        """End the connection: the stub breaks the rules."""
        self._end(RemoteProtocolError(reason))

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Read what a dead stub left in the socket, then end, then call ``on_drained``.

        That happens at once, unless so much is left that other work should run in between. A child of the stub may
        still hold the socket, and even continue to write: bytes that arrive from now on are not read.
        """
        unread = array.array("i", [0])
        if self.is_open:
            fcntl.ioctl(self._descriptor, termios.FIONREAD, unread)
            self._loop.remove_reader(self._descriptor)
            self._draining = True
        self._drain(unread[0], on_drained)

    def _drain(self, unread_bytes: int, on_drained: Callable[[], None]) -> None:
        if self.is_open and not self._arrived and unread_bytes > 0:
            unread_bytes -= self._read() or unread_bytes
        else:
            self._handle_arrived()
        if self.is_open and (self._arrived or unread_bytes > 0):
            self._loop.call_soon(self._drain, unread_bytes, on_drained)
        else:
            self._end(None)
            on_drained()

    def _read(self) -> int:
        """Read once from the socket; returns the number of bytes, 0 if there are none for now."""
        try:
            count = self._receive(self._decoder.get_buffer())
        except BlockingIOError:
            return 0
        except RemoteProtocolError as error:
            self._end(error)
            return 0
        except OSError:
            count = 0
        if count == 0:
            self._end(None)
            return 0
        try:
            self._arrived.extend(self._decoder.received(count))
        except RemoteProtocolError as error:
            self._end(error)
        self._handle_arrived()
        if self._arrived and not self._draining:  # the rest in other turns; reading resumes when all are handled
            self._loop.remove_reader(self._descriptor)
            self._loop.call_soon(self._take_turn)
        return count

    def _handle_arrived(self) -> None:
        """Handle frames, but no more of them than the loop should in one turn."""
        handled = 0
        outermost = self._turn.begin()
        try:
            while self._arrived and handled < MESSAGES_AT_ONCE:
                frame = self._arrived.popleft()
                messages = decode(self.codec, frame)
                self._on_messages(messages, frame.tail)
                handled += len(messages) or 1
        except RemoteProtocolError as error:
            self._end(error)
        except Exception:  # the event loop would only log it, and the stub would wait for ever
            log.exception("a message of a model's process could not be handled")
            self._end(RemoteProtocolError("the server could not handle a message, see its log"))
        finally:
            if outermost:
                self._turn.end()

    def _take_turn(self) -> None:
        if self._draining:
            return
        self._handle_arrived()
        if not self.is_open:
            return
        if self._arrived:
            self._loop.call_soon(self._take_turn)
        else:
            self._loop.add_reader(self._descriptor, self._read)

    def _end(self, error: RemoteProtocolError | None) -> None:
        if self.is_open:
            on_end = self._on_end
            self.close()
            on_end(error)


def _encode_json(messages: list[Any]) -> bytes:
    # The standard library's encoder: parameters may be NaN or infinite, which it writes and the stub's decoder reads.
    return json.dumps(messages, separators=(",", ":")).encode("ascii")
