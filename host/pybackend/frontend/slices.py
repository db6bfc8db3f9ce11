"""Schedules long work of many connections, one slice per turn of the event loop, so that none blocks the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

Step = Callable[[], bool]
"""Does a slice of work, a few milliseconds at most; returns True if there is more. It must not raise."""

SLICE_S = 0.005
"""How long one connection may keep a turn of the event loop."""


class Slices:
    """Runs all added work round-robin.

    Those of one connection share the slices of all: however much work it has, it has one turn among the others.
    """

    def __init__(self, shared: Slices | None = None) -> None:
        self._shared = shared
        self._steps: deque[Step] = deque()

    def add(self, step: Step) -> None:
        """Call ``step`` once per round until it returns False. Never calls it immediately."""
        self._steps.append(step)
        if len(self._steps) > 1:
            return
        if self._shared is None:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._shared.add(self._step)

    def _turn(self) -> None:
        try:
            self._step()
        finally:
            if self._steps:
                asyncio.get_running_loop().call_soon(self._turn)

    def _step(self) -> bool:
        step = self._steps[0]
        try:
            if step():
                self._steps.append(step)
        finally:
            self._steps.popleft()
        return bool(self._steps)


JOBS_AT_ONCE = 100
"""Most short jobs in a slice: with the work that follows each in later turns, about as many milliseconds as a slice has."""


def in_slices(jobs: Iterator[Callable[[], object]]) -> Step:
    """Do so many short jobs, such as cancellations, as a step for :class:`Slices`."""

    def step() -> bool:
        end_s = monotonic() + SLICE_S
        for done, job in enumerate(jobs, 1):
            job()
            if done == JOBS_AT_ONCE or monotonic() > end_s:
                return True
        return False

    return step


class TurnShare:
    """The share of one connection in the current turn of the event loop.

    A connection that may have more to do asks after each request; the rest then waits in its :class:`Slices`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends_s = 0.0

    def is_used_up(self) -> bool:
        """True once the connection has used its share; the first question in a turn begins it."""
        now_s = monotonic()
        if not self._ends_s:
            self._ends_s = now_s + SLICE_S
            self._loop.call_soon(self._end)
        return now_s >= self._ends_s

    def _end(self) -> None:
        self._ends_s = 0.0
