"""Sequences, their requests, and the slots in which they are served.

A slot is a place at one instance. A sequence keeps its slot until it is over, so that all its requests reach that instance.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.scheduler.scheduler import BatchExecutor
from pybackend.scheduler.sequence_state import StateValues


class Slot(NamedTuple):
    """A place: its number at its instance, and the instance's number. Slots sort as they are to be filled."""

    number: int
    instance: int


class LiveSequence:
    """A sequence that has begun and is not over.

    Attributes:
        id: its correlation id.
        slot: where it is served; None while it waits for a slot, and once it is over.
        waiting: its requests that are not under way, in order.
        current: its request that is under way, or about to be.
        ended: its last request has arrived.
        begun: an instance has worked for it, so that only that one can go on.
        lost: why it cannot go on; None while it can.
        over: nothing of it is left.
        active_ns: when a request of it came, or was answered, last.
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
        """True if nothing of it is under way, and nothing waits."""
        return self.current is None and not self.waiting

    @property
    def front(self) -> SequenceRequest:
        """The first request that waits."""
        return next(iter(self.waiting))

    def pop(self) -> SequenceRequest:
        """Its next request, which is under way from now on."""
        request, _ = self.waiting.popitem(last=False)
        self.current = request
        return request

    def put_back(self, request: SequenceRequest) -> None:
        """The request that was under way waits again, before all others."""
        self.current = None
        self.waiting[request] = None
        self.waiting.move_to_end(request, last=False)


class SequenceRequest:
    """A request of a sequence.

    Attributes:
        pending: the request.
        sequence: what it is a part of.
        deliver: takes its responses, in the end.
        receive: takes them first, for the batcher.
        ways: how often it has left an order in which responses leave.
        input_count: inputs of its own; what follows is the server's.
        requested: outputs that its sender asked for.
        sent: an instance has it.
        deadline_ns: until when its sequence must have a slot; 0 for any time.
    """

    __slots__ = ("deadline_ns", "deliver", "input_count", "pending", "receive", "requested", "sent", "sequence", "ways")

    def __init__(
        self,
        pending: PendingRequest,
        sequence: LiveSequence,
        on_response: Callable[[SequenceRequest, InferenceResponse], None],
    ) -> None:
        request = pending.request
        self.pending = pending
        self.sequence = sequence
        self.deliver = pending.on_response
        self.receive: OnResponse = partial(on_response, self)
        pending.on_response = self.receive
        self.ways = 0
        self.sent = False
        self.input_count = len(request.inputs)
        self.requested = request.requested_outputs
        self.deadline_ns = request.queued_ns + request.timeout_us * 1000 if request.timeout_us else 0

    def strip(self) -> None:
        """Take the server's inputs off."""
        inputs = self.pending.request.inputs
        for tensor in inputs[self.input_count :]:
            tensor.release()
        del inputs[self.input_count :]


class SlotPool:
    """The slots that are free: those of low numbers go first, so that sequences spread over the instances.

    Args:
        instances: where they are.
        slot_count: at each.
    """

    def __init__(self, instances: Sequence[BatchExecutor], slot_count: int) -> None:
        self._instances = instances
        self._free = [Slot(number, index) for number in range(slot_count) for index in range(len(instances))]
        self._parked: list[Slot] = []
        """Those of instances that are down, as far as that was noticed."""

    def revive(self) -> None:
        """Offer the slots again whose instances are back."""
        parked, self._parked = self._parked, []
        for slot in parked:
            self.give(slot)

    def give(self, slot: Slot) -> None:
        """Take a slot back."""
        heapq.heappush(self._free, slot)

    def take(self) -> Slot | None:
        """The next slot of an instance that is up, None if there is none."""
        while self._free:
            slot = heapq.heappop(self._free)
            if self._instances[slot.instance].is_up:
                return slot
            self._parked.append(slot)
        return None
