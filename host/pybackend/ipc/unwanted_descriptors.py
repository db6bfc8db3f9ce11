"""Descriptors that a model's process sends to the server, which wants none.

Closing the last descriptor of a file can block as long as the file's owner likes, e.g. for a socket that lingers. A
descriptor waiting in a socket is closed by the process that reads past it, or closes the socket. So the kernel is told
to let none in (Linux 6.16); with an older kernel the server receives them, and another thread closes them.
"""

import array
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pybackend.threads import start_thread
from pybackend_wire.errors import RemoteProtocolError

_SO_PASSRIGHTS = 83
"""From linux/asm-generic/socket.h: whether a socket accepts descriptors."""

_MOST_AT_ONCE = 253
"""Most descriptors in one message, from linux/net/scm.h."""

_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MOST_AT_ONCE * _DESCRIPTOR_BYTES)

_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def refuse_descriptors(sock: socket.socket) -> None:
    """Keep descriptors out of a UNIX socket if the kernel can; must be called before any process has the other end."""
    with suppress(OSError):  # an older kernel
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def refuses_descriptors(sock: socket.socket) -> bool:
    """Whether the kernel keeps descriptors out."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS) == 0
    except OSError:
        return False


def receiver_of(sock: socket.socket) -> Callable[[memoryview], int]:
    """Return a ``recv_into`` for a socket whose other end is a model's process.

    The function raises RemoteProtocolError if descriptors arrive.
    """
    return sock.recv_into if refuses_descriptors(sock) else partial(_receive, sock)


def _receive(sock: socket.socket, buffer: memoryview) -> int:
    count, ancillary, flags, _ = sock.recvmsg_into([buffer], _ANCILLARY_BYTES, _FLAGS)
    if ancillary or flags & socket.MSG_CTRUNC:
        received = array.array("i")
        for _, _, data in ancillary:
            received.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
        _close_elsewhere(received)
        raise RemoteProtocolError("it sends file descriptors")
    return count


def close(sock: socket.socket) -> None:
    """Close such a socket with all unread descriptors in it; the other end notices at once."""
    if sock.fileno() < 0 or refuses_descriptors(sock):
        sock.close()
        return
    with suppress(OSError):  # the other end is gone
        sock.shutdown(socket.SHUT_RDWR)
    _close_elsewhere([sock.detach()])


def _close_elsewhere(descriptors: Sequence[int]) -> None:
    def close_all() -> None:
        for descriptor in descriptors:
            with suppress(OSError):  # an error of someone else's file
                os.close(descriptor)

    try:
        start_thread(close_all, "pybackend-close")
    except RuntimeError:  # no more threads can be started
        close_all()
