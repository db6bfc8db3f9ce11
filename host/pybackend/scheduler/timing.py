"""What schedulers wait for: deadlines of requests, an exact alarm, and the number of requests of a test."""

import asyncio
import ctypes
import heapq
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from pybackend.errors import ModelLoadError

log = logging.getLogger(__name__)

_T = TypeVar("_T", bound=Hashable)

_FEW = 64
"""Number of deadlines that nothing awaits any more, and that are not worth cleaning up."""


class Deadlines(Generic[_T]):
    """Deadlines that need not be withdrawn: those of items that no longer await theirs are passed over."""

    def __init__(self, is_awaited: Callable[[_T], bool]) -> None:
        self.first_ns = 0  # the earliest deadline, even if its item no longer awaits it; 0 if there is none
        self._is_awaited = is_awaited
        self._heap: list[tuple[int, int, _T]] = []
        self._numbers = count()

    def add(self, due_ns: int, item: _T, most: int) -> None:
        """Set a deadline; at most so many items await one."""
        if len(self._heap) > 2 * most + _FEW:  # popping the others singly takes several times longer
            awaited = dict.fromkeys((due_ns, item) for due_ns, _, item in self._heap if self._is_awaited(item))
            self._heap = [(due_ns, next(self._numbers), item) for due_ns, item in awaited]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (due_ns, next(self._numbers), item))
        self.first_ns = self._heap[0][0]

    def next_ns(self) -> int:
        """The earliest deadline that an item awaits; 0 if there is none."""
        while self._heap and not self._is_awaited(self._heap[0][2]):
            self._pop()
        return self.first_ns

    def pop_due(self, now_ns: int) -> _T | None:
        """The item whose deadline passed first; None if no item awaits a deadline that has passed."""
        while 0 < self.first_ns <= now_ns:
            item = self._pop()
            if self._is_awaited(item):
                return item
        return None

    def _pop(self) -> _T:
        item = heapq.heappop(self._heap)[2]
        self.first_ns = self._heap[0][0] if self._heap else 0
        return item


_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class PreciseTimer:
    """One alarm at a time, based on a kernel timer descriptor; it calls back on the loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._due_ns = 0
        self._spec = _TimerSpec()
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._loop.add_reader(self._descriptor, self._ring)

    def set(self, due_ns: int) -> None:
        """Ring only at this ``time.monotonic_ns()`` time, immediately if it has passed; 0 cancels the alarm."""
        if due_ns == self._due_ns:
            return
        self._due_ns = due_ns
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(due_ns, 1_000_000_000)
        _libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Close the timer; it never rings again."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _ring(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set again in the meantime
            return
        self._due_ns = 0
        self._callback()


_WAITING = "TRITONSERVER_DELAY_SCHEDULER"
_BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


@dataclass
class DispatchBarrier:
    """Opens for good once so many requests wait, and so many in sequences without slots; tests make batches with it."""

    waiting: int
    backlog: int

    def is_open(self, waiting: int, backlog: int | None = None) -> bool:
        """True if requests may be executed, now that so many wait; ``backlog`` is None for a batcher without slots."""
        if waiting >= self.waiting and (backlog is None or backlog >= self.backlog):
            self.waiting = 0
        return not self.waiting


def dispatch_barrier(environ: Mapping[str, str], model_name: str) -> DispatchBarrier | None:
    """The barrier that the environment demands, None for none."""
    waiting = _number(environ, _WAITING)
    if not waiting:
        return None
    backlog = _number(environ, _BACKLOG)
    text = "model '%s' executes nothing until %d requests wait, because %s is set: this is for tests only"
    log.warning(text, model_name, waiting, _WAITING)
    return DispatchBarrier(waiting, backlog)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "") or "0"
    if not text.isdecimal():
        raise ModelLoadError(f"the environment variable {name} must be a whole number of requests, not '{text}'")
    return int(text)
