"""Schedules long work of many connections, one slice per turn of the event loop, so that none blocks the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Step = Callable[[], bool]
"""Does a slice of work, a few milliseconds at most; returns True if there is more. It must not raise."""


class Slices:
    """Runs all added work round-robin."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()

    def add(self, step: Step) -> None:
        """Call ``step`` once per round until it returns False. Never calls it immediately."""
        self._steps.append(step)
        if len(self._steps) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        step = self._steps[0]
        try:
            if step():
                self._steps.append(step)
        finally:
            self._steps.popleft()
            if self._steps:
                asyncio.get_running_loop().call_soon(self._turn)
