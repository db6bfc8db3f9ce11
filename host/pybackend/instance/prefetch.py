"""Prefetch: how many short executions a busy stub is sent ahead, and what happens when it hands some back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from pybackend.instance.execution import Execution
from pybackend_wire.messages import ATTENDED_FROM

PREFETCH_NS = 1_000_000
"""How much work, by the model's measured execution time, may wait in a stub's socket."""

MOST_PREFETCHED = 64
"""Executions in one frame; more would not make a frame cheaper and would keep the queue's order from acting."""

NO_ROOM_NS = 1_000_000_000
"""After a stub has handed work back, which models that call others do each time, nothing is sent ahead for so long."""

SLOW_NS = 5_000_000
"""An execution that runs for this long may run for ever: nothing more is sent to wait behind it."""

REST_S = 0.001
"""Before an instance that has handed work back is again sent some to run beside other work; twice as long each time."""


class Prefetch:
    """Measures the executions of one instance and says how many may be sent ahead.

    Args:
        in_flight: the executions that the stub was sent and has not returned from, by number, oldest first.
        on_available: called when the instance can take work again that it had handed back.

    Attributes:
        rests: nothing is to run beside what runs now.
        watches: a timer sees to it that nothing waits for long behind another execution.
        handed_back: how often the stub has handed work back since it returned from an execution.
    """

    def __init__(self, in_flight: Mapping[int, Execution], on_available: Callable[[], None]) -> None:
        self.rests = False
        self.watches = False
        self.handed_back = 0
        self._in_flight = in_flight
        self._on_available = on_available
        self._concurrency = 1
        self._nudge: Callable[[], None] | None = None
        self._no_room_until_ns = 0
        self._answered = 0
        self._execution_ns = 0.0
        self._last_answer_ns = 0
        self._loop = asyncio.get_running_loop()

    def begin(self, concurrency: int, nudge: Callable[[], None]) -> None:
        """Another stub executes now.

        Args:
            concurrency: how many executions it runs at a time.
            nudge: has it send the answers that it has kept.
        """
        self._concurrency, self._nudge = concurrency, nudge
        self._answered = self.handed_back = 0

    def forget_times(self) -> None:
        """Measure again: a model's first execution often says nothing about the others."""
        self._execution_ns = 0.0

    def room(self) -> int:
        """How many more executions may wait in the stub's socket; none before their length is known."""
        if not self._execution_ns or self.handed_back:
            return 0
        room = min(MOST_PREFETCHED, int(PREFETCH_NS / self._execution_ns)) - len(self._in_flight)
        if room <= 0 or not self._in_flight or self._concurrency > 1:
            return max(0, room) if self._concurrency == 1 else 0
        now_ns = time.monotonic_ns()
        if now_ns < self._no_room_until_ns:
            return 0
        if next(iter(self._in_flight)) < ATTENDED_FROM:
            return 0  # what waits behind that could not be had back
        return room if now_ns - self.busy_since_ns() < SLOW_NS else 0

    def busy_since_ns(self) -> int:
        """When the oldest running execution can have begun."""
        oldest = next(iter(self._in_flight.values()))
        return oldest.sent_ns if self._concurrency > 1 else max(oldest.sent_ns, self._last_answer_ns)

    def on_answer(self, now_ns: int, took_ns: int) -> None:
        """``execute`` has returned.

        Args:
            now_ns: by ``time.monotonic_ns()``.
            took_ns: how long the stub was busy with it.
        """
        self._answered += 1
        self.handed_back = 0
        self._last_answer_ns = now_ns
        took_ns = max(1, took_ns)
        self._execution_ns = 0.8 * self._execution_ns + 0.2 * took_ns if self._execution_ns else took_ns

    def on_handed_back(self) -> None:
        """The stub hands work back."""
        self.handed_back += 1
        self._no_room_until_ns = time.monotonic_ns() + NO_ROOM_NS

    def rest_if_busy(self) -> None:
        """Nothing can run beside the running executions for now, although it may: the model's code is busy, or no coroutine."""
        if self._in_flight and self._concurrency > 1:
            self.rests = True
            self._loop.call_later(REST_S * (1 << min(self.handed_back, 10)), self._rested)

    def _rested(self) -> None:
        self.rests = False
        self._on_available()

    def watch(self) -> None:
        """An execution was sent behind another one, and no timer runs: start it."""
        if self._concurrency == 1:
            self.watches = True
            self._loop.call_later(PREFETCH_NS / 1e9, self._check_answered, self._answered)

    def _check_answered(self, answered_before: int) -> None:
        """Several executions are running: if none was answered for a while, the first of them is slow."""
        if len(self._in_flight) < 2 or self._nudge is None:
            self.watches = False
        elif self._answered == answered_before:
            # Once is enough: the stub sends what it has kept, and hands back what it has not begun.
            self.watches = False
            self._nudge()
        else:
            self._loop.call_later(PREFETCH_NS / 1e9, self._check_answered, self._answered)
