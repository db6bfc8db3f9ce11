"""The scheduler of models that ask for none: first in, first out, each request an execution of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from pybackend.inference.pending import PendingRequest


class BatchExecutor(Protocol):
    """An instance, as far as a scheduler cares."""

    @property
    def is_idle(self) -> bool:
        """True if an execution would start at once."""

    @property
    def room(self) -> int:
        """How many short executions may be sent ahead although another one runs."""

    def execute(self, batch: list[PendingRequest]) -> None:
        """Run ``execute`` on these requests."""


class DefaultScheduler:
    """A queue in front of instances.

    Idle instances get work first; only when all are busy is more sent ahead, as much as each has room for. Requests that
    arrive in one turn of the event loop are handed out together, so that they share a frame.
    """

    def __init__(self, instances: Sequence[BatchExecutor]) -> None:
        self._loop = asyncio.get_running_loop()
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
            self._loop.call_soon(self._dispatch_scheduled)

    def requeue(self, pending: Iterable[PendingRequest]) -> None:
        """Put requests back to where they were: before all that came later."""
        self._queue.extendleft(reversed(list(pending)))

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
        # The instance that was idle for longest comes first.
        for _ in range(len(instances)):
            instance = instances[self._next % len(instances)]
            self._next += 1
            if instance.is_idle:
                instance.execute([queue.popleft()])
                if not queue:
                    return
        for instance in sorted(instances, key=_room, reverse=True) if len(instances) > 1 else instances:
            for _ in range(min(instance.room, len(queue))):
                instance.execute([queue.popleft()])

    def _dispatch_scheduled(self) -> None:
        self._scheduled = False
        self.dispatch()


def _room(instance: BatchExecutor) -> int:
    return instance.room
