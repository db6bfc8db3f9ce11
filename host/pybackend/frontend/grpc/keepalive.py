"""When a silent client is asked whether it is there, and when its connection is too old."""

from __future__ import annotations

import random
from enum import Enum
from math import inf

from pybackend.frontend.flow import IDLE_SECONDS
from pybackend.settings import KeepaliveSettings

_AGE_SPREAD = 0.1
"""Ages differ by this fraction, so that connections that were made together do not end together."""

_LAST_CALLS_S = 20
"""A client that is asked to leave may begin calls for so long, if it does not confirm that it has understood."""


class Advice(Enum):
    """The step that a connection needs now."""

    NOTHING = "nothing"
    PING = "ask the client whether it is there"
    ABORT = "the client does not answer"
    CLOSE = "the connection is not used"


class Keepalive:
    """The patience with one client that is silent. Times are seconds of the server's coarse clock.

    A client with open calls is asked in any case when it has been silent for as long as an unused connection may be.
    """

    __slots__ = ("_asked_at", "_mark", "_pings", "_settings")

    def __init__(self, settings: KeepaliveSettings) -> None:
        self._settings = settings
        self._asked_at: int | None = None
        self._pings = 0
        self._mark: object = None

    def check(self, now: int, active_at: int, mark: object, *, has_calls: bool) -> Advice:
        """Decide.

        Args:
            now: the time.
            active_at: when the client was last heard of.
            mark: another one than before if something was answered.
            has_calls: calls are open.
        """
        settings, silent_s = self._settings, now - active_at
        if self._asked_at is not None:
            if active_at < self._asked_at:
                return Advice.ABORT if now - self._asked_at >= settings.timeout_s else Advice.NOTHING
            self._asked_at = None
        if not has_calls and silent_s >= IDLE_SECONDS:
            return Advice.CLOSE
        if mark != self._mark:
            self._mark, self._pings = mark, 0
        may_ping = not settings.max_pings_without_data or self._pings < settings.max_pings_without_data
        patience_s = settings.time_s if may_ping and (has_calls or settings.permit_without_calls) else inf
        if silent_s < (min(patience_s, IDLE_SECONDS) if has_calls else patience_s):
            return Advice.NOTHING
        self._asked_at = now
        self._pings += 1
        return Advice.PING


class Age:
    """The age of one connection.

    Attributes:
        old_at: the time from which on :meth:`stage` matters; infinity for a connection that may become any age.
    """

    __slots__ = ("_grace_s", "_is_asked", "old_at")

    def __init__(self, settings: KeepaliveSettings, now: int) -> None:
        spread = random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD)  # noqa: S311  no secret
        self.old_at = now + settings.max_age_s * spread
        self._grace_s = settings.max_age_grace_s
        self._is_asked = False

    def stage(self, now: int) -> Stage:
        """The step that is due, once the connection is old."""
        old_s = now - self.old_at
        if not self._is_asked:
            self._is_asked = True
            return Stage.ASK
        if old_s >= self._grace_s:
            return Stage.END
        return Stage.LAST if old_s >= _LAST_CALLS_S else Stage.WAIT


class Stage(Enum):
    """The end of an old connection."""

    ASK = "ask the client to begin no calls"
    WAIT = "let it understand"
    LAST = "accept no further calls"
    END = "end the calls that are left"
