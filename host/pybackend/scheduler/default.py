"""The default scheduler: first in, first out, one request per execution."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.loop_turn import loop_turn_of
from pybackend.scheduler.request_queue import arrival
from pybackend.scheduler.scheduler import BatchExecutor


class DefaultScheduler:
    """A queue in front of the instances.

    Idle instances get work first. When all are busy, each receives further requests ahead of time, as far as its
    prefetch allows. Requests that arrive in one turn of the event loop are dispatched together, so that they share a frame.
    """

    def __init__(self, instances: Sequence[BatchExecutor]) -> None:
        self._turn = loop_turn_of(asyncio.get_running_loop())
        self._instances = instances
        self._queue: deque[PendingRequest] = deque()
        self._gone: set[PendingRequest] = set()
        """Requests that were removed, of which the queue still has the places: never the first one, and never most of them."""
        self._next = 0
        self._scheduled = False

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._queue) - len(self._gone)

    def enqueue(self, pending: PendingRequest) -> None:
        """Accept a request. All that arrive until the next iteration of the event loop are dispatched together."""
        self._queue.append(pending)
        if not self._scheduled:
            self._scheduled = True
            self._turn.soon(self._dispatch_scheduled)

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        """Return requests to their places in the queue, in order of arrival."""
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
        """Accept a request again, behind the waiting ones."""
        self.enqueue(pending)

    def on_lost(self, instance: object, error: InferenceError) -> None:
        """Do nothing: any other instance can serve the requests."""

    def change_instances(self) -> None:
        """Do nothing: every dispatch looks at the list."""

    def keeps(self, instance: object) -> bool:
        """False: any instance will do."""
        return False

    def remove(self, pending: PendingRequest) -> Sequence[PendingRequest]:
        """Remove a waiting request. A search for it would take as long as the queue is."""
        self._gone.add(pending)
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
        """Empty the queue, so that the caller can answer requests that cannot be served."""
        taken = [each for each in self._queue if each not in self._gone]
        self._queue.clear()
        self._gone.clear()
        return taken

    def dispatch(self) -> None:
        """Dispatch as many requests as instances can accept now."""
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

    def close(self) -> None:
        """Close the scheduler; no more requests will be enqueued."""

    def _dispatch_scheduled(self) -> None:
        self._scheduled = False
        self.dispatch()


def _prefetch_capacity(instance: BatchExecutor) -> int:
    return instance.prefetch_capacity
