"""Sequences, their requests, and their slots.

A slot is a place at one instance. A sequence keeps its slot to its end, so that all its requests reach that instance.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import NamedTuple

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.scheduler.scheduler import BatchExecutor
from pybackend.scheduler.sequence_state import StateValues


class Slot(NamedTuple):
    """A slot: its number at its instance, and the instance's number. Slots sort in the order of their use."""

    number: int
    instance: int


class LiveSequence:
    """A sequence that has started and not ended.

    Attributes:
        id: its correlation id.
        slot: its slot; None while it waits for one, and after its end.
        waiting: its requests that are not running, in order.
        current: its request that is running, or about to run.
        ended: True once its last request has arrived.
        begun: True once an instance has worked for it; only that instance can continue it.
        lost: the reason why it cannot continue; None while it can.
        over: True once it has ended and none of its requests remains.
        active_ns: time of its latest request or answer.
        states: its implicit states.
    """

    __slots__ = ("active_ns", "begun", "current", "ended", "id", "lost", "over", "slot", "states", "waiting")

    def __init__(self, correlation_id: int | str, now_ns: int) -> None:
        self.id = correlation_id
        self.slot: Slot | None = None
        self.waiting: OrderedDict[SequenceRequest, None] = OrderedDict()
        self.current: SequenceRequest | None = None
        self.ended = False
        self.begun = False
        self.lost: InferenceError | None = None
        self.over = False
        self.active_ns = now_ns
        self.states: StateValues = {}

    @property
    def is_ready(self) -> bool:
        """True if its next request may run."""
        return self.current is None and bool(self.waiting) and self.lost is None

    @property
    def is_idle(self) -> bool:
        """True if none of its requests is running or waiting."""
        return self.current is None and not self.waiting

    @property
    def front(self) -> SequenceRequest:
        """The first waiting request."""
        return next(iter(self.waiting))

    def pop(self) -> SequenceRequest:
        """Take its next request, which counts as running from now on."""
        request, _ = self.waiting.popitem(last=False)
        self.current = request
        return request

    def put_back(self, request: SequenceRequest) -> None:
        """Return the running request to the front of the waiting ones."""
        self.current = None
        self.waiting[request] = None
        self.waiting.move_to_end(request, last=False)


class SequenceRequest:
    """A request of a sequence.

    Attributes:
        pending: the request.
        sequence: its sequence.
        input_count: number of the sender's inputs; inputs after them were added by the server.
        requested: the outputs that its sender requested.
        sent: True while an instance holds it.
        deadline_ns: deadline for its sequence to get a slot; 0 for none.
    """

    __slots__ = ("deadline_ns", "input_count", "pending", "requested", "sent", "sequence")

    def __init__(self, pending: PendingRequest, sequence: LiveSequence) -> None:
        request = pending.request
        self.pending = pending
        self.sequence = sequence
        self.sent = False
        self.input_count = len(request.inputs)
        self.requested = request.requested_outputs
        self.deadline_ns = request.queued_ns + request.timeout_us * 1000 if request.timeout_us else 0

    def strip(self) -> None:
        """Remove the inputs that the server added."""
        inputs = self.pending.request.inputs
        for tensor in inputs[self.input_count :]:
            tensor.release()
        del inputs[self.input_count :]


class SlotPool:
    """The free slots. Low numbers are used first, so that sequences spread over the instances.

    A slot is created when the previous slot at the same instance is first taken.

    Args:
        slot_count: slots per instance, at least 1.
    """

    def __init__(self, slot_count: int) -> None:
        self._instances: dict[int, BatchExecutor] = {}
        self._slot_count = slot_count
        self._made: dict[int, int] = {}
        self._free: list[Slot] = []
        self._parked: list[Slot] = []
        """Slots of instances that are known to be down."""

    def add(self, number: int, instance: BatchExecutor) -> None:
        """Offer the slots of an instance."""
        self._instances[number] = instance
        self._made[number] = 1
        heapq.heappush(self._free, Slot(0, number))

    def remove(self, number: int) -> None:
        """Offer no slot of an instance any more; those in use end with their sequences."""
        del self._instances[number], self._made[number]
        self._parked = [slot for slot in self._parked if slot.instance != number]
        self._free = [slot for slot in self._free if slot.instance != number]
        heapq.heapify(self._free)

    def offers(self, number: int) -> bool:
        """True unless the instance was removed."""
        return number in self._instances

    def revive(self) -> None:
        """Offer the slots of recovered instances again."""
        parked, self._parked = self._parked, []
        for slot in parked:
            self.release(slot)

    def release(self, slot: Slot) -> None:
        """Return a slot to the pool."""
        if slot.instance in self._instances:
            heapq.heappush(self._free, slot)

    def acquire(self) -> Slot | None:
        """Take the next slot of a running instance; None if there is none."""
        while self._free:
            slot = heapq.heappop(self._free)
            if self._instances[slot.instance].is_up:
                if slot.number + 1 == self._made[slot.instance] < self._slot_count:
                    heapq.heappush(self._free, Slot(slot.number + 1, slot.instance))
                    self._made[slot.instance] += 1
                return slot
            self._parked.append(slot)
        return None
