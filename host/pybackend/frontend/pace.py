"""Measures how fast a client sends its request or reads its response. Clients must keep a minimum rate.

Each connection has a pace, which is updated by the single timer of all connections; requests cost nothing.
"""

from __future__ import annotations

import fcntl
import termios
from struct import Struct
from typing import Any

LOWEST_RATE_BYTES_PER_S = 1024
"""Minimum average rate at which clients must send a request or read a response."""

STALLED_SECONDS = 60
"""A client this far behind the minimum rate is disconnected, as is one that transfers nothing for this long."""

IDLE_SECONDS = 600
"""Idle connections are closed after this time. It is long because clients pool connections."""

SLOW_RATE_BYTES_PER_S = 64 * 1024
SLOW_AFTER_SECONDS = 5
"""If memory is short, clients below this rate for this long are disconnected."""

_NOTHING: tuple[float, ...] = ()

_INT = Struct("i")


class Pace:
    """The rate of consecutive transfers.

    Attributes:
        behind_s: how far the client is behind the minimum rate.
        seconds: duration of the current transfer.
    """

    __slots__ = ("_latest", "behind_s", "seconds")

    def __init__(self) -> None:
        self.rest()

    def rest(self) -> None:
        """Mark the transfer as idle: there is nothing to send or read."""
        self.behind_s = 0.0
        self._latest = _NOTHING
        self.seconds = 0

    def advance(self, seconds: int, moved_bytes: int) -> None:
        """Record the bytes transferred in this time, at least a second."""
        self._latest = (*self._latest, *[moved_bytes / seconds] * min(seconds, SLOW_AFTER_SECONDS))[
            -SLOW_AFTER_SECONDS:
        ]
        self.seconds += seconds
        self.behind_s = max(0.0, self.behind_s + seconds - moved_bytes / LOWEST_RATE_BYTES_PER_S)

    @property
    def rate_bytes_per_s(self) -> float:
        """The average rate of the latest five seconds: what was transferred before them counts for nothing."""
        return sum(self._latest) / max(1, len(self._latest))

    @property
    def has_stalled(self) -> bool:
        """True if the client must be disconnected."""
        return self.behind_s >= STALLED_SECONDS

    @property
    def is_slow(self) -> bool:
        """True if the client may be disconnected when memory is short."""
        return self.seconds >= SLOW_AFTER_SECONDS and self.rate_bytes_per_s < SLOW_RATE_BYTES_PER_S


def unsent_bytes(transport: Any) -> int:
    """Bytes that the client has not received, in the transport and in the kernel; 0 for a connection that closes."""
    if transport.is_closing():
        return 0
    descriptor: int = transport.get_extra_info("socket").fileno()
    return int(transport.get_write_buffer_size()) + kernel_unsent_bytes(descriptor)


def kernel_unsent_bytes(descriptor: int) -> int:
    """Bytes in a socket's send buffer that its peer has not received; 0 if unknown."""
    try:
        (count,) = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT.size)))
    except OSError:
        return 0
    return int(count)
