"""The stub's end of the control socket: blocking reads of frames, and writes that any thread may make."""

import array
import os
import select
import socket
import sys
import threading
from collections import deque
from typing import Any, Deque, Dict, List, Sequence, Tuple

from pybackend_wire.codec import JSON, Codec, available, decode_frame, encode_frame
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.framing import MOST_DESCRIPTORS, UNLIMITED, Frame, FrameDecoder
from pybackend_wire.messages import PROTOCOL_VERSION, Failure, Hello, StubMessage

_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(MOST_DESCRIPTORS * _DESCRIPTOR_BYTES)


MOST_TEXT = 1024 * 1024
"""Characters that a line of the log, or all errors of an execution together, may have: frames are bounded."""


class HostGone(Exception):
    """End of file on the control socket: the host closed it or died."""


def shortened(text: str, most: int) -> str:
    """The text itself, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


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
        self._received: Deque[Frame] = deque()
        self.descriptors: Deque[int] = deque()
        """Descriptors that came with frames, in order; each ATTACH takes one."""

    def greet(self, numpy_version: str, confined: "Dict[str, str]") -> None:
        """Say HELLO; the host's LOAD will name the codec to use from then on."""
        version = "{}.{}.{}".format(*sys.version_info[:3])
        codecs = [codec.name for codec in available()]
        self.send([Hello(StubMessage.HELLO, PROTOCOL_VERSION, os.getpid(), version, numpy_version, codecs, confined)])

    def refuse(self, message: str) -> None:
        """Say FAILED as the first and last word."""
        self.send([(StubMessage.FAILED, "start", Failure(ErrorCode.INTERNAL, message))])

    def use_codec(self, name: str) -> None:
        """Switch to the codec that the host chose from the offered ones."""
        for codec in available():
            if codec.name == name:
                self._codec = codec
                return
        raise RemoteProtocolError(f"the host chose codec {name!r}, which was not offered")

    def receive(self) -> "Tuple[List[Any], bytearray]":
        """The next frame's messages and its tail; waits for it.

        Raises:
            HostGone: the host closed the socket.
        """
        while not self._received:
            try:
                # A thread that sleeps in recvmsg is also woken whenever the host takes what was sent: poll sleeps on.
                self._poll.poll()
                count, ancillary, _, _ = self._socket.recvmsg_into([self._decoder.room()], _ANCILLARY_BYTES)
            except ConnectionResetError:  # the host closed its end without having read all that was sent
                raise HostGone from None
            if not count:
                raise HostGone
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(payload[: len(payload) - len(payload) % _DESCRIPTOR_BYTES])
                    self.descriptors.extend(received)
            self._received.extend(self._decoder.received(count))
        # LOAD is json and settles the codec of all that follows, so each frame is decoded when its turn comes.
        frame = self._received.popleft()
        return decode_frame(self._codec, frame), frame.tail

    def has_input(self) -> bool:
        """True if :meth:`receive` would find something at once; for the thread that reads."""
        return bool(self._received) or bool(self._poll.poll(0))

    def send(self, messages: "Sequence[Any]", tail: "Sequence[Any]" = ()) -> None:
        """Write one frame; waits while the host's end is full. A host that is gone is noticed by :meth:`receive`."""
        with self._write_lock:
            data = encode_frame(self._codec, messages, tail)
            try:
                self._socket.sendall(data)
            except OSError:  # the host is gone, or this is a fork that has closed its copy of the socket
                raise HostGone from None

    def disown(self) -> None:
        """In a fork of this process: the host is its parent's to speak with."""
        self._write_lock = threading.RLock()  # a thread that exists no more may hold the other one
        self._socket.close()

    def close(self) -> None:
        """Close the socket, which tells the host that nothing more will come."""
        self._socket.close()
