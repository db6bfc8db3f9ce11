"""Waiting requests, ordered by priority, then by arrival, with their queue policy's timeouts; and what delays dispatch."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count
from operator import itemgetter

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest
from pybackend.modelconfig.batching import BatchingConfig, QueuePolicy

log = logging.getLogger(__name__)

WAITING = "TRITONSERVER_DELAY_SCHEDULER"
BACKLOG = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"


class QueueHold:
    """Ends for good once enough requests wait.

    Args:
        waiting: number of requests that must wait; of sequences, those that have slots count.
        backlog: number of requests that must wait in sequences without slots.
    """

    def __init__(self, waiting: int, backlog: int) -> None:
        self._waiting = waiting
        self._backlog = backlog

    def is_over(self, waiting: int, backlog: int | None = None) -> bool:
        """True if requests may be executed, now that so many wait; ``backlog`` is None for a batcher without slots."""
        if self._waiting and waiting >= self._waiting and (backlog is None or backlog >= self._backlog):
            self._waiting = 0
        return not self._waiting


def queue_hold(environ: Mapping[str, str], model_name: str) -> QueueHold | None:
    """The hold that the environment demands, None for none.

    Raises:
        ModelLoadError: a variable has no number.
    """
    waiting = _number(environ, WAITING)
    if not waiting:
        return None
    backlog = _number(environ, BACKLOG)
    log.warning(
        "model '%s' executes nothing until %d requests wait, because %s is set: this is for tests only",
        model_name,
        waiting,
        WAITING,
    )
    return QueueHold(waiting, backlog)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "") or "0"
    if not text.isdecimal():
        raise ModelLoadError(f"the environment variable {name} must be a whole number of requests, not '{text}'")
    return int(text)


_FEW = 64
"""Number of stale deadlines that is not worth cleaning up."""


class _Level:
    """The requests of one priority.

    Attributes:
        fresh: in order of arrival, with their deadlines (0 for none).
        late: requests past their deadline, which wait behind all fresh ones of their level.
    """

    __slots__ = ("fresh", "late", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.fresh: OrderedDict[PendingRequest, int] = OrderedDict()
        self.late: OrderedDict[PendingRequest, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.late)


class RequestQueue:
    """The queue of a batching scheduler; every operation takes at most logarithmic time."""

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._first = _Level(config.policy(1))
        self._levels = {1: self._first}
        """The levels in use, by ascending priority."""
        self._count = 0
        self._deadlines: list[tuple[int, int, PendingRequest]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PendingRequest]:
        """The requests in execution order."""
        return chain.from_iterable(chain(level.fresh, level.late) for level in self._levels.values())

    def append(self, pending: PendingRequest) -> None:
        """Accept a new request.

        Raises:
            InferenceError: UNAVAILABLE, its level is full.
        """
        level = self._level(pending)
        most = level.policy.max_queue_size
        if most and len(level) >= most:
            raise InferenceError(
                f"{pending.request.prefix}Exceeds maximum queue size: {most} requests to "
                f"model '{pending.request.model_name}' are waiting (max_queue_size)",
                ErrorCode.UNAVAILABLE,
            )
        self._count += 1
        level.fresh[pending] = self._watch(pending, level.policy)

    def put_back(self, returned: Iterable[PendingRequest]) -> None:
        """Put removed requests back, in each level in order of arrival."""
        by_level: dict[_Level, dict[PendingRequest, int]] = {}
        for pending in returned:
            level = self._level(pending)
            by_level.setdefault(level, {})[pending] = self._watch(pending, level.policy)
            self._count += 1
        for level, deadlines in by_level.items():
            fresh = level.fresh
            latest_ns = max(map(arrival, deadlines))
            # Other returned requests may already be in the queue: instances hand back prefetched requests in pieces.
            while fresh and arrival(first := next(iter(fresh))) < latest_ns:
                deadlines[first] = fresh.pop(first)
            in_order = sorted(deadlines, key=arrival)
            for pending in reversed(in_order):
                fresh[pending] = deadlines[pending]
                fresh.move_to_end(pending, last=False)

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request."""
        level = self._level(pending)
        if level.fresh.pop(pending, None) is None:
            del level.late[pending]
        self._count -= 1

    @property
    def next_deadline_ns(self) -> int:
        """The earliest deadline of a waiting request; 0 if there is none."""
        if len(self._deadlines) > 2 * self._count + _FEW:  # most deadlines belong to requests that have left
            self._forget_the_gone()
        while self._deadlines and not self._is_current(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else 0

    def expire(self, now_ns: int) -> list[PendingRequest]:
        """Remove and return requests past their deadline that must be refused; delay those that the policy keeps."""
        refused = []
        while 0 < self.next_deadline_ns <= now_ns:
            pending = heapq.heappop(self._deadlines)[2]
            level = self._level(pending)
            del level.fresh[pending]
            if level.policy.delays:
                level.late[pending] = 0
            else:
                self._count -= 1
                refused.append(pending)
        return refused

    def _level(self, pending: PendingRequest) -> _Level:
        config = self._config
        if not config.priority_levels:
            return self._first
        priority = pending.request.priority
        if not 1 <= priority <= config.priority_levels:
            priority = config.default_priority
        level = self._levels.get(priority)
        return self._make(priority) if level is None else level

    def _make(self, priority: int) -> _Level:
        """Create a level for its first request: configurations may define many more levels than requests use."""
        made = _Level(self._config.policy(priority))
        self._levels = dict(sorted([*self._levels.items(), (priority, made)], key=itemgetter(0)))
        return made

    def _watch(self, pending: PendingRequest, policy: QueuePolicy) -> int:
        """Record a request's deadline; returns that time, 0 for none."""
        timeout_us, wanted_us = policy.timeout_us, pending.request.timeout_us
        if policy.allows_override and 0 < wanted_us < timeout_us:
            timeout_us = wanted_us
        if not timeout_us:
            return 0
        deadline_ns = pending.request.queued_ns + timeout_us * 1000
        heapq.heappush(self._deadlines, (deadline_ns, next(self._numbers), pending))
        return deadline_ns

    def _forget_the_gone(self) -> None:
        """Rebuild the heap from waiting requests' deadlines; popping the others singly takes several times longer."""
        self._deadlines = [
            (deadline_ns, next(self._numbers), pending)
            for level in self._levels.values()
            for pending, deadline_ns in level.fresh.items()
            if deadline_ns
        ]
        heapq.heapify(self._deadlines)

    def _is_current(self, entry: tuple[int, int, PendingRequest]) -> bool:
        return self._level(entry[2]).fresh.get(entry[2]) == entry[0]


def arrival(pending: PendingRequest) -> int:
    """A request's arrival time, as a sort key."""
    return pending.request.queued_ns


_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class PreciseTimer:
    """One alarm at a time, based on a kernel timer descriptor.

    Args:
        callback: called on the loop when the alarm is due.

    Raises:
        OSError: the system has no file descriptors left.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._due_ns = 0
        self._spec = _TimerSpec()
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
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
