"""The host's end of a stub's control socket, on the event loop: frames out once per turn, frames in as they come."""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import os
import socket
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pybackend.ipc.stub_messages import Message, decode
from pybackend.ipc.turn import turn_of
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import HEADER, MOST_DESCRIPTORS, Frame, FrameDecoder

_TAIL_ALIGNMENT_BYTES = 16
"""What malloc gives the stub's copy of a tail: compiled code may refuse arrays that are not aligned."""
_ZEROS = bytes(_TAIL_ALIGNMENT_BYTES)

_encode_msgpack = msgspec.msgpack.Encoder().encode

OnMessages = Callable[[list[Message], bytearray], None]
OnEnd = Callable[[RemoteProtocolError | None], None]

MESSAGES_AT_ONCE = 256
"""About how many messages of one stub are handled in a turn of the loop. Seldom are there more than a few; a model that
calls others without end must leave the loop to them now and then."""

MOST_BACKLOG_BYTES = 256 * 1024 * 1024
"""What may wait for a stub that does not read. So much is there only for one that asks without end and reads no answer."""

MOST_MESSAGES = 1024
"""In one frame; a stub puts less than a hundred into one."""


class StubChannel:
    """Frames to and from one stub.

    Messages posted in one turn of the loop, or while one frame is handled, leave in one frame. Nothing here ever waits for the stub: what its socket does
    not take at once is kept and sent when it drains; how much that can be is bounded by what the scheduler sends.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, on_messages: OnMessages, on_end: OnEnd
    ) -> None:
        self._loop = loop
        self._turn = turn_of(loop)
        self._socket = sock
        self._descriptor = sock.fileno()
        self._on_messages = on_messages
        self._on_end = on_end
        self._codec = "json"
        self._decoder = FrameDecoder()
        self._messages: list[Any] = []
        self._tail: list[Any] = []
        self._tail_bytes = 0
        self._descriptors: list[int] = []
        self._backlog = bytearray()
        self._arrived: deque[Frame] = deque()
        self._open = True
        self._draining = False
        loop.add_reader(self._descriptor, self._read)

    @property
    def is_open(self) -> bool:
        """False after the end of file, a broken contract, or :meth:`close`."""
        return self._open

    @property
    def backlog_bytes(self) -> int:
        """What the socket has not taken yet."""
        return len(self._backlog)

    @property
    def has_unread(self) -> bool:
        """True if the stub has not read everything yet that was posted; False once the channel is closed."""
        if not self._open:
            return False
        if self._messages or self._backlog:
            return True
        unread = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, unread)
        return unread[0] > 0

    def use_codec(self, name: str) -> None:
        """Encode and decode with this codec from the next frame on."""
        self._codec = name

    def post(self, message: Sequence[Any]) -> None:
        """Put a message into this turn's frame; nothing once the channel is closed."""
        if not self._open:
            return
        if not self._messages:
            self._turn.soon(self.flush)
        self._messages.append(message)

    def post_descriptor(self, message: Sequence[Any], descriptor: int) -> None:
        """Put a message into this turn's frame whose descriptor travels with it (a duplicate: it may be closed).

        Raises:
            OSError: this process has no descriptor left; the message is not posted.
        """
        if self._open:
            self._descriptors.append(os.dup(descriptor))
            self.post(message)

    def append_tail(self, data: Any, nbytes: int) -> int:
        """Put bytes into the tail of this turn's frame, aligned as any array element wants; returns their offset there."""
        offset = self._tail_bytes
        if nbytes:
            gap = -offset % _TAIL_ALIGNMENT_BYTES
            if gap:
                self._tail.append(_ZEROS[:gap])
                offset += gap
            self._tail.append(data)
            self._tail_bytes = offset + nbytes
        return offset

    def flush(self) -> None:
        """Send this turn's frame now."""
        if not self._messages or not self._open:
            return
        metadata = _encode_msgpack(self._messages) if self._codec == "msgpack" else _encode_json(self._messages)
        header = HEADER.pack(len(metadata), self._tail_bytes)
        data = b"".join((header, metadata, *self._tail)) if self._tail else header + metadata
        self._messages.clear()
        self._tail.clear()
        self._tail_bytes = 0
        if not self._backlog:
            sent = self._send(data)
            if sent == len(data):
                return
            self._loop.add_writer(self._descriptor, self._writable)
            self._backlog += memoryview(data)[sent:]
        else:
            self._backlog += data
            if len(self._backlog) > MOST_BACKLOG_BYTES:
                self._end(RemoteProtocolError(f"{len(self._backlog)} bytes wait for the stub, which does not read"))

    def close(self) -> None:
        """Stop reading and writing; the stub sees the end of file."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
            self._arrived.clear()
            if self._backlog:
                self._loop.remove_writer(self._descriptor)
            self._socket.close()
            self._close_descriptors()

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Read what a stub that is dead has left in the socket, then end, then call this.

        That is at once, unless it has left so much that others should have their turns meanwhile. A child of it may still
        hold the socket, and even go on writing: what comes from now on is not read.
        """
        unread = array.array("i", [0])
        if self._open:
            fcntl.ioctl(self._descriptor, termios.FIONREAD, unread)
            self._loop.remove_reader(self._descriptor)
            self._draining = True
        self._drain(unread[0], on_drained)

    def _drain(self, unread_bytes: int, on_drained: Callable[[], None]) -> None:
        if self._open and not self._arrived and unread_bytes > 0:
            unread_bytes -= self._read() or unread_bytes
        else:
            self._handle_arrived()
        if self._open and (self._arrived or unread_bytes > 0):
            self._loop.call_soon(self._drain, unread_bytes, on_drained)
        else:
            self._end(None)
            on_drained()

    def _send(self, data: bytes | bytearray) -> int:
        """Send what the socket takes; returns how much that is, all of it if the other end is gone."""
        try:
            if not self._descriptors:
                return self._socket.send(data)
            with memoryview(data) as view:
                return self._send_with_descriptors(view)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # reading tells, after what it said last

    def _send_with_descriptors(self, data: memoryview) -> int:
        """Send what the socket takes; all groups of descriptors but the last travel with a single byte each."""
        sent = 0
        while self._descriptors:
            group = self._descriptors[:MOST_DESCRIPTORS]
            end = len(data) if len(group) == len(self._descriptors) else sent + 1
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", group))
            try:
                sent += self._socket.sendmsg([data[sent:end]], [rights])
            except BlockingIOError:
                break
            self._close_descriptors(len(group))
        return sent

    def _close_descriptors(self, count: int | None = None) -> None:
        for descriptor in self._descriptors[:count]:
            os.close(descriptor)
        del self._descriptors[:count]

    def _writable(self) -> None:
        del self._backlog[: self._send(self._backlog)]
        if not self._backlog:
            self._loop.remove_writer(self._descriptor)

    def _read(self) -> int:
        """Take what one system call gives; returns how many bytes, 0 if there is nothing more for now."""
        try:
            count = self._socket.recv_into(self._decoder.room())
        except BlockingIOError:
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
        if self._arrived and not self._draining:  # the rest in other turns; reading goes on when all are handled
            self._loop.remove_reader(self._descriptor)
            self._loop.call_soon(self._take_turn)
        return count

    def _handle_arrived(self) -> None:
        """Handle frames, but not more of them than the loop can bear in one turn."""
        handled = 0
        outermost = self._turn.begin()
        try:
            while self._arrived and handled < MESSAGES_AT_ONCE:
                frame = self._arrived.popleft()
                messages = decode(self._codec, frame)
                if len(messages) > MOST_MESSAGES:
                    raise RemoteProtocolError(f"a frame of {len(messages)} messages")
                self._on_messages(messages, frame.tail)
                handled += len(messages) or 1
        except RemoteProtocolError as error:
            self._end(error)
        finally:
            if outermost:
                self._turn.end()

    def _take_turn(self) -> None:
        if self._draining:
            return
        self._handle_arrived()
        if not self._open:
            return
        if self._arrived:
            self._loop.call_soon(self._take_turn)
        else:
            self._loop.add_reader(self._descriptor, self._read)

    def _end(self, error: RemoteProtocolError | None) -> None:
        if self._open:
            self.close()
            self._on_end(error)


def _encode_json(messages: list[Any]) -> bytes:
    # The standard library's encoder: parameters may be NaN or infinite, which it writes and the stub's reader takes.
    return json.dumps(messages, separators=(",", ":")).encode("ascii")
