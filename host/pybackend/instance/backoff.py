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

    async def wait(self) -> None:
        """Wait until it is time for the next restart, and count it; the first is due at once."""
        if self.restarts:
            await asyncio.sleep(min(FIRST_BACKOFF_S * 2 ** (self.restarts - 1), LONGEST_BACKOFF_S))
        self.restarts += 1
