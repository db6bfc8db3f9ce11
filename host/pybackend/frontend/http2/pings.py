"""PINGs of a client: those that come too often end the connection, by the rules that gRPC's servers follow.

A client that pings between answers is on a busy connection, and every piece of an answer clears its record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from pybackend.frontend.http2.errors import ErrorCode, RemoteProtocolError


@dataclass(frozen=True, slots=True)
class PingRules:
    """How often a client may ping.

    Attributes:
        clock: tells the time in seconds; called when a PING arrives.
        interval_s: the least time between two PINGs without an answer's data between them.
        idle_interval_s: the same while no stream is open.
        max_strikes: PINGs that may come too early.
    """

    clock: Callable[[], float]
    interval_s: float
    idle_interval_s: float
    max_strikes: int


class TooManyPingsError(RemoteProtocolError):
    """A client pings too often; clients of gRPC know the GOAWAY frame by its text, and ping less from then on."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, "6.7", "the client sends PING frames too often")
        self.debug = b"too_many_pings"


class PingJudge:
    """Judges the PINGs of one connection."""

    __slots__ = ("_mark", "_received_s", "_rules", "_strikes")

    def __init__(self, rules: PingRules) -> None:
        self._rules = rules
        self._strikes = 0
        self._received_s = -inf
        self._mark: object = None

    def received(self, mark: object, *, is_idle: bool) -> None:
        """Judge a PING.

        Args:
            mark: differs from that of the previous PING if something was answered in between.

        Raises:
            TooManyPingsError: the client has pinged too early more often than it may.
        """
        rules, now_s = self._rules, self._rules.clock()
        if mark != self._mark:
            self._mark, self._strikes, self._received_s = mark, 0, -inf
        waited_s, self._received_s = now_s - self._received_s, now_s
        if waited_s < (rules.idle_interval_s if is_idle else rules.interval_s):
            self._strikes += 1
            if self._strikes > rules.max_strikes:
                raise TooManyPingsError
