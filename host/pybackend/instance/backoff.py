"""How long an instance waits before it is restarted: each time longer, unless it lived for a while."""

from __future__ import annotations

import asyncio
import time

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 10.0

HEALTHY_AFTER_S = 60.0
"""An instance that lived this long is restarted as if it had never died."""


class RestartBackoff:
    """The restarts of one instance.

    Attributes:
        restarts: in a row, none of which lived long.
    """

    def __init__(self) -> None:
        self.restarts = 0
        self._ready_at_s = 0.0

    def on_ready(self) -> None:
        """The instance takes requests."""
        self._ready_at_s = time.monotonic()

    def on_death(self) -> None:
        """It does not any more."""
        if time.monotonic() - self._ready_at_s > HEALTHY_AFTER_S:
            self.restarts = 0

    @property
    def delay_s(self) -> float:
        """How long the next restart waits; the first is due at once."""
        return min(FIRST_BACKOFF_S * 2 ** (self.restarts - 1), LONGEST_BACKOFF_S) if self.restarts else 0.0

    async def wait(self) -> None:
        """Wait until it is time for the next restart, and count it."""
        if self.restarts:
            await asyncio.sleep(self.delay_s)
        self.restarts += 1

    def prospect(self, limit: int) -> str:
        """When the next restart is, in a sentence.

        Args:
            limit: most restarts in a row, 0 for any number.
        """
        number = self.restarts + 1
        if limit and number > limit:
            return f"It is not restarted any more: {self.restarts} restarts in a row are its limit."
        when = f"in {self.delay_s:g} s" if self.restarts else "now"
        return f"Restart {number}{f' of at most {limit}' if limit else ''} in a row begins {when}."
