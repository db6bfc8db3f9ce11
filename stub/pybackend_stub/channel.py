"""The stub's end of the control socket: blocking reads of frames, and writes from any thread."""

import array
import os
import select
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.framing import (
    JSON,
    MOST_DESCRIPTORS,
    UNLIMITED,
    Codec,
    Frame,
    FrameDecoder,
    available,
    decode_frame,
    encode_frame,
)
from pybackend_wire.host_messages import decoded
from pybackend_wire.messages import PROTOCOL_VERSION, Failure, HostMessage
from pybackend_wire.stub_messages import Failed, FromStub, Hello, encoded

DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * DESCRIPTOR_BYTES)

_EXECUTE = int(HostMessage.EXECUTE)

MOST_TEXT = 1024 * 1024
"""Most characters of a log line, or of all errors of an execution together: frames are bounded."""


Unsent = Tuple["Sequence[Tuple[Any, ...]]", "Sequence[Any]"]
"""The encoded messages and the tail of a frame."""


class HostGone(Exception):
    """End of file on the control socket: the host closed it or died."""


def shortened(text: str, most: int) -> str:
    """Return the text itself, or its beginning with the number of characters cut off."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


def descriptors_in(ancillary: "Sequence[Any]") -> "List[int]":
    """The descriptors that have come with a message."""
    received = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(payload[: len(payload) - len(payload) % DESCRIPTOR_BYTES])
    return list(received)


class HostChannel:
    """Frames to and from the host.

    Only one thread reads. Any thread may write; a frame is written whole.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        os.set_inheritable(descriptor, False)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._decoder = FrameDecoder(UNLIMITED, UNLIMITED)
        self._codec: Codec = JSON
        self._write_lock = threading.RLock()
        self._pid = os.getpid()
        self._received: Deque[Frame] = deque()
        self.descriptors: Deque[int] = deque()
        """Descriptors received with frames, in order; each ATTACH takes one."""

    def greet(self, numpy_version: str, confined: "Dict[str, str]") -> None:
        """Send HELLO; the host's LOAD names the codec to use from then on."""
        version = "{}.{}.{}".format(*sys.version_info[:3])
        codecs = [codec.name for codec in available()]
        self.say(Hello(PROTOCOL_VERSION, os.getpid(), version, numpy_version, codecs, confined))

    def refuse(self, message: str) -> None:
        self.say(Failed("start", Failure(ErrorCode.INTERNAL, message)))

    def use_codec(self, name: str) -> None:
        """Switch to the codec that the host chose from the offered ones."""
        for codec in available():
            if codec.name == name:
                self._codec = codec
                return
        raise RemoteProtocolError(f"the host chose codec {name!r}, which was not offered")

    def receive(self) -> "Tuple[List[Any], bytearray]":
        """Wait for the next frame; returns its messages and its tail.

        An EXECUTE is the list that came; there are many.
        """
        while not self._received:
            try:
                # A thread asleep in recvmsg also wakes whenever the host reads what was sent; one in poll sleeps on.
                self._poll.poll()
                count, ancillary, _, _ = self._socket.recvmsg_into(
                    [self._decoder.get_buffer()], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionResetError:  # the host closed its end without reading everything
                raise HostGone from None
            except OSError:
                if self._socket.fileno() >= 0:
                    raise
                raise HostGone from None  # another thread has closed it meanwhile
            if not count:
                raise HostGone
            if ancillary:
                self.descriptors.extend(descriptors_in(ancillary))
            self._received.extend(self._decoder.received(count))
        # LOAD is json and selects the codec of everything after it, so each frame is decoded when its turn comes.
        frame = self._received.popleft()
        messages = decode_frame(self._codec, frame)
        return [fields if fields[0] == _EXECUTE else decoded(fields) for fields in messages], frame.tail

    def has_input(self) -> bool:
        """Whether :meth:`receive` would return at once; for the thread that reads."""
        return bool(self._received) or bool(self._poll.poll(0))

    def say(self, message: FromStub, tail: "Sequence[Any]" = ()) -> None:
        """Write one message as a frame; see :meth:`send`."""
        self.send([encoded(message)], tail)

    def send(
        self, messages: "Sequence[Tuple[Any, ...]]", tail: "Sequence[Any]" = (), before: "Optional[Unsent]" = None
    ) -> None:
        """Write encoded messages as a frame; waits while the host's end is full.

        Args:
            before: the content of a frame to write just before, so that the host wakes up once for both.

        Raises:
            HostGone: the host closed the socket; :meth:`receive` notices that too.
            LocalProtocolError: the messages are too long; nothing was written.
        """
        with self._write_lock:
            data = encode_frame(self._codec, messages, tail)
            if before is not None:
                data = encode_frame(self._codec, *before) + data
            try:
                self._socket.sendall(data)
            except OSError:  # the host is gone, or this is a fork that closed its copy of the socket
                raise HostGone from None

    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that the host speaks to."""
        return os.getpid() != self._pid

    def disown(self) -> None:
        """Close the socket in a fork of this process: only the parent speaks to the host."""
        self._write_lock = threading.RLock()  # a thread that no longer exists may hold the other one
        self._socket.close()

    def close(self) -> None:
        """End the connection. Threads that wait for messages hear of it; otherwise the host would not."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
