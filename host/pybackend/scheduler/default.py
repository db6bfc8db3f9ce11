"""The scheduler of models that ask for none: first in, first out, each request an execution of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.ipc.turn import turn_of
from pybackend.scheduler.request_queue import arrival
from pybackend.scheduler.scheduler import BatchExecutor


class DefaultScheduler:
    """A queue in front of instances.

    Idle instances get work first; only when all are busy is more sent ahead, as much as each has room for. Requests that
    arrive in one turn of the event loop are handed out together, so that they share a frame.
    """

    def __init__(self, instances: Sequence[BatchExecutor]) -> None:
        self._turn = turn_of(asyncio.get_running_loop())
        self._instances = instances
        self._queue: deque[PendingRequest] = deque()
        self._next = 0
        self._scheduled = False

    def __len__(self) -> int:
        """Number of requests that wait."""
        return len(self._queue)

    def enqueue(self, pending: PendingRequest) -> None:
        """Take a request; it is handed out before the loop's next turn."""
        self._queue.append(pending)
        if not self._scheduled:
            self._scheduled = True
            self._turn.soon(self._dispatch_scheduled)

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        """Put requests back to where they were: before all that came later, behind all that came before."""
        returned = list(waiting)
        latest_ns = max((arrival(pending) for pending in returned), default=0)
        queue = self._queue
        # Others may be back already: what an instance was sent ahead comes back piece by piece.
        while queue and arrival(queue[0]) < latest_ns:
            returned.append(queue.popleft())
        returned.sort(key=arrival)
        queue.extendleft(reversed(returned))

    def reschedule(self, pending: PendingRequest) -> None:
        """Take a request once more, after those that wait."""
        self.enqueue(pending)

    def on_lost(self, instance: object, error: InferenceError) -> None:
        """Any other instance does as well."""

    def remove(self, pending: PendingRequest) -> None:
        """Forget a request that waits."""
        self._queue.remove(pending)

    def take_all(self) -> list[PendingRequest]:
        """Empty the queue, for whoever has to answer what cannot be served."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    def dispatch(self) -> None:
        """Hand out what instances can take now."""
        queue, instances = self._queue, self._instances
        if not queue:
            return
        # The instance that was idle for longest comes first; one that runs several executions at once may come again.
        busy = 0
        while busy < len(instances):
            instance = instances[self._next % len(instances)]
            self._next += 1
            if not instance.is_idle:
                busy += 1
                continue
            busy = 0
            instance.execute([queue.popleft()])
            if not queue:
                return
        for instance in sorted(instances, key=_room, reverse=True) if len(instances) > 1 else instances:
            for _ in range(min(instance.room, len(queue))):
                instance.execute([queue.popleft()])

    def close(self) -> None:
        """Nothing will be enqueued any more."""

    def _dispatch_scheduled(self) -> None:
        self._scheduled = False
        self.dispatch()


def _room(instance: BatchExecutor) -> int:
    return instance.room
