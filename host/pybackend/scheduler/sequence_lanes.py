"""How the requests of one instance's sequences become batches: the two strategies of the sequence batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.modelconfig.batching import BatchingConfig
from pybackend.modelconfig.sequences import SequenceConfig
from pybackend.scheduler.dynamic_batcher import DynamicBatcher
from pybackend.scheduler.scheduler import BatchExecutor, SchedulerOwner
from pybackend.scheduler.sequence_inputs import SequenceInputs
from pybackend.scheduler.sequence_slots import LiveSequence, SequenceRequest

ShapeKey = Callable[[InferenceRequest], object] | None


class SequenceLane(Protocol):
    """One instance's slots."""

    def update(self, sequence: LiveSequence) -> None:
        """A sequence in one of the slots has requests that wait, or none any more."""

    def leave(self, sequence: LiveSequence) -> None:
        """A sequence leaves its slot; nothing of it is under way."""

    def requeue(self, items: Sequence[SequenceRequest]) -> None:
        """These were sent, and not begun."""

    def reschedule(self, item: SequenceRequest) -> None:
        """This was executed, and is to be executed once more."""

    def withdraw(self, item: SequenceRequest) -> None:
        """Forget a request that is about to be sent."""

    def dispatch(self, now_ns: int) -> int:
        """Send what is due; returns when to be asked again, 0 if nothing waits for the time to pass."""

    def close(self) -> None:
        """Nothing waits any more."""


class DirectLane:
    """Each sequence has its place in every batch: what is not ready is filled up.

    Args:
        config: when batches are sent.
        instance: that takes them.
        owner: told of requests that cannot be executed.
        inputs: what requests get before they are sent.
        shape_key: what must be equal within a batch; None if any requests may go together.
    """

    def __init__(
        self,
        config: SequenceConfig,
        instance: BatchExecutor,
        owner: SchedulerOwner,
        inputs: SequenceInputs,
        shape_key: ShapeKey,
    ) -> None:
        self._instance = instance
        self._owner = owner
        self._inputs = inputs
        self._shape_key = shape_key
        self._delay_ns = config.delay_us * 1000
        self._enough = config.minimum_utilization * config.slot_count
        self._ready: dict[int, LiveSequence] = {}

    def update(self, sequence: LiveSequence) -> None:
        """A sequence in one of the slots has requests that wait, or none any more."""
        assert sequence.slot is not None
        if sequence.is_ready:
            self._ready[sequence.slot.number] = sequence
        else:
            self._ready.pop(sequence.slot.number, None)

    def leave(self, sequence: LiveSequence) -> None:
        """A sequence leaves its slot."""
        assert sequence.slot is not None
        self._ready.pop(sequence.slot.number, None)

    def requeue(self, items: Sequence[SequenceRequest]) -> None:
        """These were sent, and not begun."""
        for item in items:
            self.reschedule(item)

    def reschedule(self, item: SequenceRequest) -> None:
        """This was executed, and is to be executed once more, before what follows in its sequence."""
        item.sequence.put_back(item)
        self.update(item.sequence)

    def withdraw(self, item: SequenceRequest) -> None:
        """Nothing is about to be sent: what is not under way waits in its sequence."""

    def dispatch(self, now_ns: int) -> int:
        """Send a batch of all that is ready, unless it is to wait for more."""
        while self._ready and self._instance.is_idle:
            oldest = min(self._ready.values(), key=_arrival)
            ripe_ns = _arrival(oldest) + self._delay_ns
            if len(self._ready) < self._enough and now_ns < ripe_ns:
                return ripe_ns
            items = self._take(oldest)
            if not items:
                continue
            try:
                batch = self._filled(items)
            except InferenceError as error:
                for item in items.values():
                    self._owner.on_rejected(item.pending, error)
                continue
            self._instance.execute(batch)
        return 0

    def _take(self, oldest: LiveSequence) -> dict[int, SequenceRequest]:
        """The next requests that can go together, by slot, ready to be sent."""
        key_of = self._shape_key
        key = None if key_of is None else key_of(oldest.front.pending.request)
        taken: dict[int, SequenceRequest] = {}
        refused: list[tuple[SequenceRequest, InferenceError]] = []
        for number, sequence in list(self._ready.items()):
            if key_of is not None and key_of(sequence.front.pending.request) != key:
                continue
            del self._ready[number]
            item = sequence.pop()
            try:
                self._inputs.add(item)
                taken[number] = item
            except InferenceError as error:
                refused.append((item, error))
        for item, refusal in refused:
            self._owner.on_rejected(item.pending, refusal)
        return taken

    def _filled(self, items: dict[int, SequenceRequest]) -> list[PendingRequest]:
        """One request for each slot up to the last that is ready."""
        like = next(iter(items.values()))
        batch: list[PendingRequest] = []
        try:
            for number in range(max(items) + 1):
                pending = items[number].pending if number in items else self._inputs.filler(like)
                batch.append(pending)
        except InferenceError:
            for pending in batch:
                if pending.is_filler:
                    pending.request.release()
            raise
        return batch

    def close(self) -> None:
        """Nothing waits any more."""


class OldestLane:
    """The next request of each sequence goes through a dynamic batcher, oldest first.

    Args:
        config: of that batcher.
        instance: that takes its batches.
        owner: told of batches, and of requests that cannot be executed.
        inputs: what requests get before they are sent.
        shape_key: what must be equal within a batch; None if any requests may go together.
    """

    def __init__(
        self,
        config: BatchingConfig,
        instance: BatchExecutor,
        owner: SchedulerOwner,
        inputs: SequenceInputs,
        shape_key: ShapeKey,
    ) -> None:
        self._owner = owner
        self._inputs = inputs
        self._ordered = config.preserve_ordering
        self._batcher = DynamicBatcher(config, [instance], owner, shape_key)

    def update(self, sequence: LiveSequence) -> None:
        """A sequence in one of the slots has requests that wait, or none any more."""
        while sequence.is_ready:
            item = sequence.pop()
            if self._add_inputs(item):
                if self._ordered:
                    item.pending.on_response = _Way(item)
                self._batcher.enqueue(item.pending)

    def leave(self, sequence: LiveSequence) -> None:
        """A sequence leaves its slot."""

    def requeue(self, items: Sequence[SequenceRequest]) -> None:
        """These were sent, and not begun."""
        self._batcher.requeue([item.pending for item in items])

    def reschedule(self, item: SequenceRequest) -> None:
        """This was executed, and is to be executed once more, after what others wait for."""
        if self._add_inputs(item):
            self._batcher.reschedule(item.pending)

    def withdraw(self, item: SequenceRequest) -> None:
        """Forget a request that is about to be sent; it may come back, or go to another lane."""
        self._batcher.remove(item.pending)
        if self._ordered:
            # Those behind it must not wait for it: its place in their order ends with a response that nobody gets.
            ordered, item.pending.on_response = item.pending.on_response, item.receive
            request = item.pending.request
            item.ways += 1
            ordered(InferenceResponse(request.model_name, request.model_version, request.id, empty=True))

    def dispatch(self, now_ns: int) -> int:
        """Send the batches that are due; the batcher has a timer of its own."""
        self._batcher.dispatch()
        return 0

    def close(self) -> None:
        """Nothing waits any more."""
        self._batcher.close()

    def _add_inputs(self, item: SequenceRequest) -> bool:
        try:
            self._inputs.add(item)
        except InferenceError as error:
            self._owner.on_rejected(item.pending, error)
            return False
        return True


class _Way:
    """A request's way out through the order of one lane; closed once the request has left that lane."""

    __slots__ = ("_item", "_way")

    def __init__(self, item: SequenceRequest) -> None:
        self._item = item
        self._way = item.ways

    def __call__(self, response: InferenceResponse) -> None:
        if self._way == self._item.ways:
            self._item.receive(response)
        else:
            response.release()


def _arrival(sequence: LiveSequence) -> int:
    return sequence.front.pending.request.queued_ns
