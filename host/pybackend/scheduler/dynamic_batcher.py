"""The dynamic batcher combines waiting requests into one execution."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.modelconfig.schema import BatchingConfig
from pybackend.scheduler.ordered_delivery import DeliveryLine
from pybackend.scheduler.request_queue import RequestQueue, arrival
from pybackend.scheduler.scheduler import BatchExecutor, BatchReason, Scheduler, SchedulerOwner
from pybackend.scheduler.timing import PreciseTimer


class _Batch(NamedTuple):
    request_count: int
    reason: BatchReason


ShapeKey = Callable[[InferenceRequest], object]
"""Returns equal keys for requests that may share a batch."""


class DynamicBatcher(Scheduler):
    """A queue in front of instances that execute several requests at once.

    Args:
        shape_key: None if any requests may share a batch.
        line: keeps the order of responses from the requests' arrival on; None if responses may be sent in any order.
        may_dispatch: tells whether requests may be executed, now that so many wait; None if they always may.
    """

    def __init__(
        self,
        config: BatchingConfig,
        instances: Sequence[BatchExecutor],
        owner: SchedulerOwner,
        shape_key: ShapeKey | None = None,
        line: DeliveryLine | None = None,
        may_dispatch: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__()
        self._config = config
        self._instances = instances
        self._owner = owner
        self._shape_key = shape_key
        self._queue = RequestQueue(config)
        self._line = line
        self._may_dispatch = may_dispatch
        self._delay_ns = config.max_queue_delay_us * 1000
        self._largest_preferred = max(config.preferred_batch_sizes, default=0)
        self._timer = PreciseTimer(self.dispatch)
        self._next = 0

    def __len__(self) -> int:
        return len(self._queue)

    def enqueue(self, pending: PendingRequest) -> None:
        self._queue.append(pending)
        if self._line is not None:
            self._line.add(pending)
        self._schedule()

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        self._queue.put_back(waiting)

    def reschedule(self, pending: PendingRequest) -> None:
        self._queue.append(pending)  # it keeps its place in the order of responses
        self._schedule()

    def remove(self, pending: PendingRequest) -> Sequence[PendingRequest]:
        self._queue.remove(pending)  # its answer keeps its place in the order of responses
        return (pending,)

    def take_all(self) -> list[PendingRequest]:
        taken = list(self._queue)
        for pending in taken:
            self._queue.remove(pending)
        self._timer.set(0)
        return taken

    def close(self) -> None:
        self._timer.close()

    def dispatch(self) -> None:
        """Send the batches that are due to free instances."""
        self._is_scheduled = False
        now_ns = time.monotonic_ns()
        for pending in self._queue.expire(now_ns):
            expired = InferenceError(f"{pending.request.prefix}Request timeout expired", ErrorCode.UNAVAILABLE)
            self._owner.on_refused([pending], expired)
        ripe_ns = 0
        while self._queue and (self._may_dispatch is None or self._may_dispatch(len(self._queue))):
            instance = self._idle_instance() or self._prefetching_instance()
            if instance is None:
                break
            batch = self._form(now_ns)
            if batch is None:
                ripe_ns = min(map(arrival, self._queue)) + self._delay_ns
                break
            if not instance.is_idle and batch.reason is not BatchReason.FULL:
                break  # it may grow until the instance is free
            self._send(instance, batch)
        deadline_ns = self._queue.deadlines.next_ns()
        self._timer.set(min(ripe_ns, deadline_ns) if ripe_ns and deadline_ns else ripe_ns or deadline_ns)

    def _idle_instance(self) -> BatchExecutor | None:
        instances = self._instances
        for offset in range(len(instances)):
            index = (self._next + offset) % len(instances)
            if instances[index].is_idle:
                self._next = index + 1
                return instances[index]
        return None

    def _prefetching_instance(self) -> BatchExecutor | None:
        """An instance that will soon be free, so that its next batch may be sent ahead."""
        return next((instance for instance in self._instances if instance.prefetch_capacity), None)

    def _send(self, instance: BatchExecutor, batch: _Batch) -> None:
        requests = list(islice(self._queue, batch.request_count))
        for pending in requests:
            self._queue.remove(pending)
        self._owner.on_batch(batch.reason)
        instance.execute(requests)

    def _form(self, now_ns: int) -> _Batch | None:
        """The batch to send to a free instance; None if the waiting batch may still grow."""
        config = self._config
        count = size = preferred_count = count_within = 0
        cannot_grow = False
        key: object = None
        oldest_ns = now_ns
        for pending in self._queue:
            request = pending.request
            if size + request.batch_size > config.max_batch_size and count:
                cannot_grow = True
                break
            if self._shape_key is not None:
                own = self._shape_key(request)
                if count and own != key:
                    cannot_grow = True
                    break
                key = own
            count += 1
            size += request.batch_size
            oldest_ns = min(oldest_ns, request.queued_ns)
            if size in config.preferred_batch_sizes:
                preferred_count = count
            if size <= self._largest_preferred:
                count_within = count
        waited = self._delay_ns > 0 and now_ns - oldest_ns >= self._delay_ns
        if preferred_count and not waited:
            full = preferred_count == count and size >= config.max_batch_size
            return _Batch(preferred_count, BatchReason.FULL if full else BatchReason.PREFERRED)
        if count_within and size > self._largest_preferred and self._delay_ns and not waited:
            return _Batch(count_within, BatchReason.FULL)  # no further request fits, and the others may wait for more
        if (
            cannot_grow
            or size >= config.max_batch_size
            or (self._largest_preferred and size >= self._largest_preferred)
        ):
            return _Batch(count, BatchReason.FULL)
        if waited:
            return _Batch(count, BatchReason.DELAY)
        return None if self._delay_ns else _Batch(count, BatchReason.IDLE)
