"""How long an instance waits before it is restarted: each time longer, unless it lived for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 10.0

HEALTHY_AFTER_S = 60.0
"""An instance that lived this long is restarted as if it had never died."""


class RestartBackoff:
    """The restarts of one instance.

    Args:
        limit: most restarts in a row before the instance is given up, 0 for any number.
        retry_s: how often an instance that was given up is tried again, 0 for never.
        clock_s: the time.

    Attributes:
        restarts: in a row, none of which lived long.
    """

    def __init__(self, limit: int = 0, retry_s: float = 0, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.restarts = 0
        self._limit = limit
        self._retry_s = retry_s
        self._clock_s = clock_s
        self._ready_at_s = 0.0
        self._hurried_at_s = -LONGEST_BACKOFF_S
        self._hurry = asyncio.Event()

    def on_ready(self) -> None:
        """The instance takes requests."""
        self._ready_at_s = self._clock_s()

    def on_death(self) -> None:
        """It does not any more."""
        if self._clock_s() - self._ready_at_s > HEALTHY_AFTER_S:
            self.restarts = 0

    @property
    def is_over(self) -> bool:
        """True if there were so many restarts that the instance is given up."""
        return 0 < self._limit <= self.restarts

    @property
    def tries_again(self) -> bool:
        """False if an instance that was given up stays as it is."""
        return self._retry_s > 0

    @property
    def delay_s(self) -> float:
        """How long the next restart waits; the first is due at once."""
        return min(FIRST_BACKOFF_S * 2 ** min(self.restarts - 1, 10), LONGEST_BACKOFF_S) if self.restarts else 0.0

    async def wait(self) -> None:
        """Wait until it is time for the next restart, and count it."""
        if self.is_over:
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry_s):
                    await self._hurry.wait()
        elif self.restarts:
            await asyncio.sleep(self.delay_s)
        self.restarts += 1

    def hurry(self) -> None:
        """Somebody needs the instance: if it was given up, try it now, but no more often than in the longest back-off."""
        now_s = self._clock_s()
        if self.is_over and now_s - self._hurried_at_s >= LONGEST_BACKOFF_S:
            self._hurried_at_s = now_s
            self._hurry.set()

    @property
    def prospect(self) -> str:
        """When the next restart is, in a sentence."""
        if self.is_over:
            if not self.tries_again:
                return f"It is not restarted any more: {self._limit} restarts in a row are its limit."
            return f"It is given up after {self._limit} restarts in a row: it is tried again in {self._retry_s:g} s, or at the next request."
        when = f"in {self.delay_s:g} s" if self.restarts else "now"
        most = f" of at most {self._limit}" if self._limit else ""
        return f"Restart {self.restarts + 1}{most} in a row begins {when}."
