"""What waiting costs: requests with deadlines and priorities through the dynamic batcher, few of them and very many.

No server, no process: the batcher of this interpreter on an event loop, before an instance that is free only when
asked.
"""

import asyncio
import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pybackend.cli.process_setup import GC_THRESHOLD
from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest, RequestHolder
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import Lease
from pybackend.modelconfig.schema import BatchingConfig, QueuePolicy
from pybackend.scheduler.dynamic_batcher import DynamicBatcher
from pybackend.scheduler.scheduler import SchedulerOwner
from tests.bench import progress
from tests.bench.plan import Plan

_PRIORITIES = 3
_SHORTEST_TIMEOUT_US, _LONGEST_TIMEOUT_US = 3_600_000_000, 7_200_000_000
"""None is reached, but all must be watched."""
_WITHDRAWN_EVERY = 10
"""One of so many requests is withdrawn while it waits."""


@dataclass(frozen=True)
class QueueSample:
    """One round of one length of the queue.

    Attributes:
        waiting: how many requests waited at the same time.
        requests: how many there were altogether.
        cpu_us: CPU time per request, from its arrival to its execution.
    """

    waiting: int
    round: int
    requests: int
    cpu_us: float


class _Instance:
    """Executes by counting."""

    prefetch_capacity = 0
    is_up = True

    def __init__(self) -> None:
        self.is_idle = False
        self.executed = 0

    def execute(self, batch: list[PendingRequest]) -> None:
        self.executed += len(batch)


class _Queue(RequestHolder):
    """Drops what is cancelled."""

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher = batcher

    def cancel(self, pending: PendingRequest) -> None:
        self._batcher.remove(pending)


def _on_refused(_batch: Sequence[PendingRequest], error: InferenceError) -> None:
    raise error


def _no_memory(_nbytes: int) -> Lease:
    raise NotImplementedError("the requests have no tensors")


def measure(plan: Plan) -> list[QueueSample]:
    """Fill and empty queues of all lengths, in turn; in each round as many requests pass through each."""
    samples: list[QueueSample] = []
    requests = max(plan.queue_lengths)
    with _collecting_as_the_server():
        asyncio.run(_pass_through(min(plan.queue_lengths), requests))  # what the first request of all costs is nobody's
        for round_ in range(plan.queue_rounds):
            for waiting in plan.queue_lengths if round_ % 2 == 0 else reversed(plan.queue_lengths):
                cpu_us = asyncio.run(_pass_through(waiting, requests))
                progress.show(f"{waiting:,} waiting requests, round {round_ + 1}: {cpu_us:.2f} us of CPU per request")
                samples.append(QueueSample(waiting, round_, requests, cpu_us))
    return samples


@contextmanager
def _collecting_as_the_server() -> Iterator[None]:
    """Look for garbage as seldom as the server does."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


async def _pass_through(waiting: int, requests: int) -> float:
    """Let so many requests wait at a time until all have been executed; returns microseconds of CPU time per request."""
    policy = QueuePolicy(timeout_us=_LONGEST_TIMEOUT_US, allows_override=True)
    config = BatchingConfig(
        max_batch_size=8, priority_levels=_PRIORITIES, default_priority=_PRIORITIES, default_policy=policy
    )
    instance = _Instance()
    batcher = DynamicBatcher(config, [instance], SchedulerOwner(_on_refused, _no_memory, lambda _reason: None))
    choice = random.Random(waiting)
    arriving = [_request(choice, batcher) for _ in range(requests)]
    began = time.process_time()
    for begin in range(0, requests, waiting):
        await _fill_and_empty(batcher, instance, arriving[begin : begin + waiting])
    seconds = time.process_time() - began
    batcher.close()
    withdrawn = sum(pending.cancelled for pending in arriving)
    if instance.executed + withdrawn != requests:
        raise RuntimeError(f"of {requests} requests {instance.executed} were executed and {withdrawn} withdrawn")
    return seconds / requests * 1e6


async def _fill_and_empty(batcher: DynamicBatcher, instance: _Instance, arriving: Sequence[PendingRequest]) -> None:
    instance.is_idle = False
    for number, pending in enumerate(arriving):
        pending.request.queued_ns = time.monotonic_ns()
        batcher.enqueue(pending)
        if number % _WITHDRAWN_EVERY == 0:
            arriving[number // 2].cancel()
    await asyncio.sleep(0)  # the batcher's own turn, which finds nobody free
    instance.is_idle = True
    batcher.dispatch()


def _request(choice: random.Random, batcher: DynamicBatcher) -> PendingRequest:
    request = InferenceRequest("model")
    request.priority = choice.randint(1, _PRIORITIES)
    request.timeout_us = choice.randint(_SHORTEST_TIMEOUT_US, _LONGEST_TIMEOUT_US)
    return PendingRequest(request, lambda response: response.release(), _Queue(batcher))
