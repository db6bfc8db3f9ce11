"""The default scheduler: first in, first out, one request per execution."""

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter

from pybackend.inference.pending import PendingRequest
from pybackend.scheduler.request_queue import arrival
from pybackend.scheduler.scheduler import BatchExecutor, Scheduler

_prefetch_capacity = attrgetter("prefetch_capacity")


class DefaultScheduler(Scheduler):
    """A queue in front of the instances.

    Idle instances get work first. When all are busy, each receives further requests ahead of time, as far as its
    prefetch allows.
    """

    def __init__(self, instances: Sequence[BatchExecutor]) -> None:
        super().__init__()
        self._instances = instances
        self._queue: deque[PendingRequest] = deque()
        self._gone: set[PendingRequest] = set()
        """Removed requests that are still in the queue: never its first one, and never most of it."""
        self._next = 0

    def __len__(self) -> int:
        return len(self._queue) - len(self._gone)

    def enqueue(self, pending: PendingRequest) -> None:
        self._queue.append(pending)
        if not self._is_scheduled:  # `_schedule` without a call
            self._is_scheduled = True
            self._turn.soon(self.dispatch)

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        returned = list(waiting)
        latest_ns = max((arrival(pending) for pending in returned), default=0)
        queue = self._queue
        # Other returned requests may already be in the queue: an instance hands back prefetched requests in pieces.
        while queue and arrival(queue[0]) < latest_ns:
            returned.append(queue.popleft())
        returned.sort(key=arrival)
        queue.extendleft(reversed(returned))
        self._pass_over_gone()

    def reschedule(self, pending: PendingRequest) -> None:
        self.enqueue(pending)

    def remove(self, pending: PendingRequest) -> Sequence[PendingRequest]:
        self._gone.add(pending)  # a search for it would take as long as the queue is
        if 2 * len(self._gone) > len(self._queue):
            left = self.take_all()
            self._queue.extend(left)
        self._pass_over_gone()
        return (pending,)

    def _pass_over_gone(self) -> None:
        queue, gone = self._queue, self._gone
        while gone and queue[0] in gone:
            gone.discard(queue.popleft())

    def take_all(self) -> list[PendingRequest]:
        taken = [each for each in self._queue if each not in self._gone]
        self._queue.clear()
        self._gone.clear()
        return taken

    def dispatch(self) -> None:
        self._is_scheduled = False
        queue, gone, instances = self._queue, self._gone, self._instances
        if not queue:
            return
        # The instance that has been idle longest comes first; one with several concurrent executions may come
        # repeatedly.
        busy = 0
        while busy < len(instances):
            instance = instances[self._next % len(instances)]
            self._next += 1
            if not instance.is_idle:
                busy += 1
                continue
            busy = 0
            instance.execute([queue.popleft()])
            if gone:
                self._pass_over_gone()
            if not queue:
                return
        for instance in sorted(instances, key=_prefetch_capacity, reverse=True) if len(instances) > 1 else instances:
            for _ in range(min(instance.prefetch_capacity, len(queue) - len(gone))):
                instance.execute([queue.popleft()])
                if gone:
                    self._pass_over_gone()
