"""Waiting requests, ordered by priority, then by arrival, with their queue policy's timeouts."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

from pybackend.errors import ErrorCode, FullQueueError
from pybackend.inference.pending import PendingRequest
from pybackend.modelconfig.schema import BatchingConfig, QueuePolicy
from pybackend.scheduler.timing import Deadlines


@dataclass(slots=True, eq=False)
class _Level:
    """The requests of one priority; those past their deadline are late, and wait behind all fresh ones."""

    policy: QueuePolicy
    fresh: OrderedDict[PendingRequest, None] = field(default_factory=OrderedDict)
    late: dict[PendingRequest, None] = field(default_factory=dict)

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
        self.deadlines = Deadlines(self._is_fresh)  # of the requests that are not late

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PendingRequest]:
        return chain.from_iterable(chain(level.fresh, level.late) for level in self._levels.values())

    def append(self, pending: PendingRequest) -> None:
        level = self._level(pending)
        most = level.policy.max_queue_size
        if most and len(level) >= most:
            raise FullQueueError(
                f"{pending.request.prefix}Exceeds maximum queue size: {most} requests to "
                f"model '{pending.request.model_name}' are waiting (max_queue_size)",
                ErrorCode.UNAVAILABLE,
            )
        self._count += 1
        level.fresh[pending] = None
        self._watch(pending, level.policy)

    def put_back(self, returned: Iterable[PendingRequest]) -> None:
        """Put removed requests back, in each level in order of arrival."""
        by_level: dict[_Level, list[PendingRequest]] = {}
        for pending in returned:
            level = self._level(pending)
            by_level.setdefault(level, []).append(pending)
            self._watch(pending, level.policy)
            self._count += 1
        for level, waiting in by_level.items():
            fresh = level.fresh
            latest_ns = max(map(arrival, waiting))
            # Other returned requests may already be in the queue: instances hand back prefetched requests in pieces.
            while fresh and arrival(next(iter(fresh))) < latest_ns:
                waiting.append(fresh.popitem(last=False)[0])
            waiting.sort(key=arrival)
            for pending in reversed(waiting):
                fresh[pending] = None
                fresh.move_to_end(pending, last=False)

    def remove(self, pending: PendingRequest) -> None:
        level = self._level(pending)
        del (level.fresh if pending in level.fresh else level.late)[pending]
        self._count -= 1

    def expire(self, now_ns: int) -> list[PendingRequest]:
        """Remove and return requests past their deadline that must be refused; delay those that the policy keeps."""
        refused = []
        while (pending := self.deadlines.pop_due(now_ns)) is not None:
            level = self._level(pending)
            del level.fresh[pending]
            if level.policy.delays:
                level.late[pending] = None
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
        if level is None:  # configurations may define many more levels than requests use
            level = _Level(config.policy(priority))
            self._levels = dict(sorted([*self._levels.items(), (priority, level)], key=itemgetter(0)))
        return level

    def _watch(self, pending: PendingRequest, policy: QueuePolicy) -> None:
        timeout_us, wanted_us = policy.timeout_us, pending.request.timeout_us
        if policy.allows_override and 0 < wanted_us < timeout_us:
            timeout_us = wanted_us
        if timeout_us:
            self.deadlines.add(pending.request.queued_ns + timeout_us * 1000, pending, self._count)

    def _is_fresh(self, pending: PendingRequest) -> bool:
        return pending in self._level(pending).fresh


def arrival(pending: PendingRequest) -> int:
    """A request's arrival time, as a sort key."""
    return pending.request.queued_ns
