"""The way from other threads to an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

log = logging.getLogger(__name__)

Step = Callable[[], object]


class Crossing:
    """Has an event loop call functions for other threads, in order; one wake-up serves all that wait.

    After the loop's end, the thread that sends a function calls it if the crossing is ``lasting``; otherwise nobody
    does.
    """

    __slots__ = ("_has_ended", "_is_woken", "_lasting", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, lasting: bool) -> None:
        self._loop = ref(loop)
        self._lasting = lasting
        self._waiting: deque[Step] = deque()
        self._is_woken = False
        self._has_ended = False

    def send(self, step: Step) -> None:
        """Have the loop call a function soon."""
        self._waiting.append(step)
        if self._has_ended:
            self.end()
        elif not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            try:
                if loop is None:
                    self.end()
                else:
                    loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # it is closed
                self.end()

    def end(self) -> None:
        """The loop has ended: deal with what waits."""
        self._has_ended = True
        if self._lasting:
            self._run()
        else:
            self._waiting.clear()

    def _run(self) -> None:
        self._is_woken = False  # first: who sends from now on wakes the loop again
        waiting = self._waiting
        while waiting:
            try:
                step = waiting.popleft()
            except IndexError:  # after the loop's end, another thread was faster
                return
            try:
                step()
            except Exception:  # the other steps are not to blame
                log.exception("what another thread has handed to an event loop failed")


_crossings: WeakKeyDictionary[asyncio.AbstractEventLoop, Crossing] = WeakKeyDictionary()


def crossing_to_caller() -> Crossing:
    """The crossing to the running event loop, which is a caller's."""
    loop = asyncio.get_running_loop()
    crossing = _crossings.get(loop)
    if crossing is None:
        crossing = _crossings[loop] = Crossing(loop, lasting=False)
    return crossing
