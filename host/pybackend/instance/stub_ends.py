"""What connects a stub with its host: a socket, a counter of nudges and the pipe that it prints into."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

_SOCKET_BUFFER_BYTES = 1024 * 1024
"""Room for a turn's frame, so that the host rarely has to keep a rest."""

_OUTPUT_BUFFER_BYTES = 256 * 1024
"""What a model can print while the host is busy. More would soon use up what one user's pipes may take together, 64 MB, and
then all of them shrink."""


@dataclass(frozen=True)
class HostEnds:
    """What the host keeps; whoever has it closes it."""

    socket: socket.socket
    nudges: int
    output: int


@dataclass(frozen=True)
class StubEnds:
    """What the stub gets: descriptors, which the host closes once they are handed over."""

    socket: int
    nudges: int
    output: int


@contextmanager
def connected_ends() -> Iterator[tuple[HostEnds, StubEnds]]:
    """Both ends, for the length of a ``with`` block that starts a stub; the host's stay if it succeeds.

    Raises:
        OSError: there are not that many descriptors.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.enter_context(our_end)
        theirs.enter_context(their_end)
        nudges = os.eventfd(0, os.EFD_CLOEXEC)
        ours.callback(os.close, nudges)
        our_output, their_output = output_pipe()
        ours.callback(os.close, our_output)
        theirs.callback(os.close, their_output)
        for end in (our_end, their_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        our_end.setblocking(False)
        yield HostEnds(our_end, nudges, our_output), StubEnds(their_end.fileno(), nudges, their_output)
        ours.pop_all()


def output_pipe() -> tuple[int, int]:
    """A pipe for what a process prints: the end to read from, and the other one."""
    ours, theirs = os.pipe()
    with suppress(OSError):  # this user has many pipes: then a model waits for the host a little sooner
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _OUTPUT_BUFFER_BYTES)
    return ours, theirs
