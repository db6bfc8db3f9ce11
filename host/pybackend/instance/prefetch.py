"""Prefetch: how many short executions a busy stub is sent ahead, and what happens when it hands some back."""

import asyncio
import time
from collections.abc import Callable

from pybackend.instance.execution import Execution, InstanceOwner
from pybackend.instance.session import StubSession
from pybackend_wire.messages import ATTENDED_FROM, NUDGE_TO_ANSWER

PREFETCH_NS = 1_000_000
"""How much work, by the model's measured execution time, may wait in a stub's socket."""

MOST_PREFETCHED = 64
"""Executions in one frame; more would not make a frame cheaper and would keep the queue's order from acting."""

CHECK_S = 0.001
"""How often the host checks a stub that has several executions."""

CALLER_CHECK_S = 0.005
"""How often it checks one whose model calls others: only one execution waits there, and not for long."""

SLOW_NS = 5_000_000
"""An execution that runs for this long may run for ever: nothing more is sent to wait behind it."""

SILENCES = 5
"""After this many checks in a row without progress, the executions that wait behind the running one are recalled. Fewer
mean nothing on a busy machine: the stub may just not have been given a core. A stall of the host counts as one check.
"""

CAUTION_NS = 1_000_000
"""For so long nothing is sent ahead after a stub has handed work back; twice as long each time, half after each
success.

So a silence that the machine has caused costs a millisecond, and a model that calls others each time, which hands
everything back, soon gets nothing ahead any more.
"""

MOST_CAUTION = 10
"""The time doubles so often: up to a second."""

MOST_GROWTH = 2.0
"""One execution counts at most as so many average ones: if the stub had to wait for a core, the time is not the
model's."""

REST_S = 0.001
"""Before an instance that has handed work back is again sent some to run beside other work; twice as long each time."""


class Prefetch:
    """Measures the executions of one instance and says how many may be sent ahead.

    Work leaves in two frames at most: one that the stub executes, and one that waits in its socket. Requests that
    arrive meanwhile leave in one frame when the first is answered. So frames grow with the load, and the stub need not
    wait for the host.

    A model that calls others gets nothing ahead while a call may come: it would have to hand that back. With the answer
    to the last call, as it usually makes them, the next execution travels along.

    Args:
        in_flight: the executions that the stub was sent and has not returned from, by number, oldest first.
    """

    def __init__(
        self,
        in_flight: dict[int, Execution],
        owner: InstanceOwner,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.rests = False  # nothing is to run beside what runs now, or beside what another model in the process runs
        self.is_timed = False  # a timer makes sure that no execution waits for long behind another one
        self.handed_back = 0  # how often the stub has handed work back since it returned from an execution
        self._in_flight = in_flight
        self._owner = owner
        self._clock_ns = clock_ns
        self._concurrency = 1
        self._stub: StubSession | None = None
        self._caution = 0
        self._paused_until_ns = 0
        self._answered = 0
        self.usual_ns = 0.0  # how long an execution usually takes, 0 if none was measured
        self._last_answer_ns = 0
        self._progress = (0, 0)
        self._silences = 0
        self._calls = self._replies = 0  # to other models, of the oldest execution
        self._usual_calls = 0  # of the latest one that has ended
        self._replied_ns = 0  # when all its calls so far were answered
        self._ending_ns = 0.0  # how long an execution usually lasts from then on
        self._loop = asyncio.get_running_loop()

    def begin(self, concurrency: int, stub: StubSession) -> None:
        self._concurrency, self._stub = concurrency, stub
        self._answered = self.handed_back = self._calls = self._replies = 0
        self.rests = False

    def end(self) -> None:
        """The stub is gone.

        Its buffers would otherwise live as long as the instance, which is part of reference cycles.
        """
        self._stub = None

    def forget_times(self) -> None:
        """Measure again: a model's first execution often says nothing about the others."""
        self.usual_ns = 0.0

    def capacity(self) -> int:
        """How many more executions may wait in the stub's socket; none before their length is known."""
        if not self.usual_ns or self.handed_back or self._concurrency > 1:
            return 0
        in_flight = self._in_flight
        if self._usual_calls:
            most = 2 if self._is_ending else 0
        else:
            most = min(MOST_PREFETCHED, int(PREFETCH_NS / self.usual_ns))
        capacity = most - len(in_flight)
        if capacity <= 0:
            return 0
        if not in_flight:
            return capacity
        number, oldest = next(iter(in_flight.items()))
        if number < ATTENDED_FROM:
            return 0  # what waits behind that could not be had back
        assert self._stub is not None
        newest = next(reversed(in_flight.values()))
        if oldest.frame != newest.frame != self._stub.channel.next_frame:
            return 0
        now_ns = self._clock_ns()
        if now_ns < self._paused_until_ns or now_ns - self.busy_since_ns() >= SLOW_NS:
            return 0
        return capacity

    @property
    def _is_ending(self) -> bool:
        """Whether the oldest execution has had the answers to as many calls as it usually makes, and ends soon."""
        return self._replies == self._calls == self._usual_calls and self._ending_ns <= PREFETCH_NS

    def on_call(self, number: int) -> None:
        """An execution calls another model."""
        if number == next(iter(self._in_flight), None):
            self._calls += 1

    def on_reply(self, number: int) -> None:
        """A call of an execution is about to be answered for the last time."""
        if self._calls and number == next(iter(self._in_flight), None):
            self._replies += 1
            if self._replies == self._calls:
                self._replied_ns = self._clock_ns()
                if self._is_ending and self.capacity():
                    self._owner.on_available()

    def busy_since_ns(self) -> int:
        """When the oldest running execution can have begun."""
        oldest = next(iter(self._in_flight.values()))
        return oldest.sent_ns if self._concurrency > 1 else max(oldest.sent_ns, self._last_answer_ns)

    def on_answer(self, execution: Execution, now_ns: int, took_ns: float) -> None:
        """``execute`` has returned.

        Args:
            took_ns: how long the stub was busy with it.
        """
        self._answered += 1
        self.handed_back = 0
        self._last_answer_ns = now_ns
        if execution.ahead and self._caution:
            self._caution -= 1
        self.usual_ns = _average(self.usual_ns, took_ns)
        if self._calls and self._replies == self._calls:
            self._ending_ns = _average(self._ending_ns, min(took_ns, now_ns - self._replied_ns))
        self._usual_calls, self._calls, self._replies = self._calls, 0, 0

    def on_handed_back(self) -> None:
        self.handed_back += 1
        self._paused_until_ns = self._clock_ns() + (CAUTION_NS << self._caution)
        self._caution = min(MOST_CAUTION, self._caution + 1)

    def rest_if_busy(self) -> None:
        """Nothing can run beside the running executions for now, although it may: the model's code is busy, or no coroutine."""
        if self._in_flight and self._concurrency > 1:
            self.rests = True
            self._loop.call_later(REST_S * (1 << min(self.handed_back, 10)), self._rested)

    def occupy(self, *, occupied: bool) -> None:
        """Another model in the process runs the instance, or does not any more."""
        self.rests = occupied
        if occupied:
            self.handed_back = 0  # it is not the model that keeps handing back
        else:
            self._owner.on_available()

    def _rested(self) -> None:
        self.rests = False
        self._owner.on_available()

    def start_timer(self) -> None:
        """An execution was sent behind another one, and no timer runs: start it."""
        if self._concurrency == 1 and self._stub is not None:
            self.is_timed = True
            self._silences = 0
            self._progress = (self._answered, self._stub.last_begun())
            self._loop.call_later(self._check_s, self._check, self._stub)

    @property
    def _check_s(self) -> float:
        return CALLER_CHECK_S if self._usual_calls else CHECK_S

    def _check(self, stub: StubSession) -> None:
        """Several executions are in the stub: if it neither answers nor begins any, the one that it runs may be slow."""
        if len(self._in_flight) < 2 or stub is not self._stub:
            self.is_timed = False
            return
        progress = (self._answered, begun := stub.last_begun())
        self._silences = 0 if progress != self._progress else self._silences + 1
        self._progress = progress
        if self._silences >= SILENCES or (self._silences and self._owner.has_idle_instance()):
            self.is_timed = False  # once is enough: nothing waits behind the running execution afterwards
            stub.process.nudge()  # then it hands back what it has not begun
            return
        if self._silences == 1 and next(iter(self._in_flight)) < begun:
            stub.process.nudge(NUDGE_TO_ANSWER)  # those that it has kept while the execution runs
        self._loop.call_later(self._check_s, self._check, stub)


def _average(average_ns: float, took_ns: float) -> float:
    """A moving average with one more value; 0 stands for none."""
    if not average_ns:
        return float(max(1, took_ns))
    return average_ns + 0.2 * (min(took_ns, MOST_GROWTH * average_ns) - average_ns)
