"""The connections between a stub and its host: a socket, a pipe for nudges, and a pipe for the stub's output."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from pybackend.ipc.unwanted_descriptors import refuse_descriptors

_SOCKET_BUFFER_BYTES = 1024 * 1024
"""Room for a turn's frame, so that the host rarely has to keep a remainder."""

_OUTPUT_BUFFER_BYTES = 256 * 1024
"""Room for a model's output while the host is busy. With more, a user's pipes would soon reach their common limit, 64
MB, and all of them would shrink."""


@dataclass(frozen=True)
class HostEnds:
    """The host's ends; their owner closes them."""

    socket: socket.socket
    nudges: int
    output: int


@dataclass(frozen=True)
class StubEnds:
    """The stub's ends: descriptors, which the host closes once they are handed over."""

    socket: int
    nudges: int
    output: int


@contextmanager
def connected_ends() -> Iterator[tuple[HostEnds, StubEnds]]:
    """Make both ends, for the length of a ``with`` block that starts a stub; the host's stay open if it succeeds.

    Raises:
        OSError: there are not enough descriptors.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.enter_context(our_end)
        theirs.enter_context(their_end)
        # No shared counter such as an eventfd: the stub could fill it and so block the host's write.
        their_nudges, our_nudges = os.pipe()
        ours.callback(os.close, our_nudges)
        theirs.callback(os.close, their_nudges)
        os.set_blocking(our_nudges, False)
        our_output, their_output = output_pipe()
        ours.callback(os.close, our_output)
        theirs.callback(os.close, their_output)
        refuse_descriptors(our_end)
        for end in (our_end, their_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        our_end.setblocking(False)
        yield HostEnds(our_end, our_nudges, our_output), StubEnds(their_end.fileno(), their_nudges, their_output)
        ours.pop_all()


def output_pipe() -> tuple[int, int]:
    """Make a pipe for a process's output; returns the end to read from, and the other one."""
    ours, theirs = os.pipe()
    with suppress(OSError):  # this user has many pipes; then a model waits for the host a little sooner
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _OUTPUT_BUFFER_BYTES)
    return ours, theirs
