"""How late the event loop calls its timers: it is late while a callback runs for long."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_PERIOD_S = 0.25


class LoopLag:
    """A histogram of delays.

    Attributes:
        counts: timers by their delay; the last one has no bound.
        sum_s: of all delays.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            late_s = max(0.0, loop.time() - due_s)
            self.sum_s += late_s
            self.counts[bisect_left(BOUNDS_S, late_s)] += 1
