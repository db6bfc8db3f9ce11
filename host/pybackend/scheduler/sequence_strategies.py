"""Combines the requests of one instance's sequences into batches: the two strategies of the sequence batcher."""

from collections.abc import Callable, Sequence

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.modelconfig.schema import BatchingConfig
from pybackend.modelconfig.sequences import SequenceConfig
from pybackend.scheduler.dynamic_batcher import DynamicBatcher, ShapeKey
from pybackend.scheduler.ordered_delivery import DeliveryLine, OrderedDelivery
from pybackend.scheduler.scheduler import BatchExecutor
from pybackend.scheduler.sequence_inputs import SequenceInputs
from pybackend.scheduler.sequences import LiveSequence, SequenceRequest

MayDispatch = Callable[[int], bool]
"""Tells whether requests may be executed, now that so many wait at the instance."""


class DirectStrategy:
    """Each sequence has a fixed place in every batch, and fillers take unready places."""

    def __init__(
        self,
        config: SequenceConfig,
        instance: BatchExecutor,
        inputs: SequenceInputs,
        shape_key: ShapeKey | None,
        may_dispatch: MayDispatch | None,
    ) -> None:
        self._instance = instance
        self._owner = inputs.owner
        self._inputs = inputs
        self._shape_key = shape_key
        self._may_dispatch = may_dispatch
        self._delay_ns = config.delay_us * 1000
        self._enough = config.minimum_utilization * config.slot_count
        self._ready: dict[int, LiveSequence] = {}

    def update(self, sequence: LiveSequence) -> None:
        """The waiting requests of a sequence in a slot have changed."""
        assert sequence.slot is not None
        if sequence.is_ready:
            self._ready[sequence.slot.number] = sequence
        else:
            self._ready.pop(sequence.slot.number, None)

    def leave(self, sequence: LiveSequence) -> None:
        """A sequence leaves its slot; none of its requests is running."""
        assert sequence.slot is not None
        self._ready.pop(sequence.slot.number, None)

    def requeue(self, items: Sequence[SequenceRequest]) -> None:
        """Accept requests that were sent to the instance and not started."""
        for item in items:
            self.reschedule(item)

    def reschedule(self, item: SequenceRequest) -> None:
        """Accept an executed request again, before later requests of its sequence."""
        item.sequence.put_back(item)
        self.update(item.sequence)

    def withdraw(self, item: SequenceRequest) -> None:
        """Do nothing: requests wait in their sequences until they are sent."""

    def dispatch(self, now_ns: int) -> int:
        """Send the batches that are due; returns the time for the next call, 0 if no batch waits for a delay."""
        while self._ready and self._instance.is_idle:
            if self._may_dispatch is not None and not self._may_dispatch(len(self._ready)):
                return 0
            oldest = min(self._ready.values(), key=_arrival)
            ripe_ns = _arrival(oldest) + self._delay_ns
            if len(self._ready) < self._enough and now_ns < ripe_ns:
                return ripe_ns
            items = self._pop_batch(oldest)
            if not items:
                continue
            try:
                batch = self._filled(items)
            except InferenceError as error:
                self._owner.on_refused([item.pending for item in items.values()], error)
                continue
            self._instance.execute(batch)
        return 0

    def _pop_batch(self, oldest: LiveSequence) -> dict[int, SequenceRequest]:
        """The next compatible requests, by slot, ready to be sent."""
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
            self._owner.on_refused([item.pending], refusal)
        return taken

    def _filled(self, items: dict[int, SequenceRequest]) -> list[PendingRequest]:
        """One request for each slot up to the last ready one."""
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
        """No requests wait any more."""


class OldestStrategy:
    """The next request of each sequence goes through a dynamic batcher. Requests keep their order in the line."""

    def __init__(
        self,
        config: BatchingConfig,
        instance: BatchExecutor,
        inputs: SequenceInputs,
        shape_key: ShapeKey | None,
        line: DeliveryLine | None,
        may_dispatch: MayDispatch | None,
    ) -> None:
        self._owner = inputs.owner
        self._inputs = inputs
        self._line = line
        self._batcher = DynamicBatcher(config, [instance], inputs.owner, shape_key, line, may_dispatch)

    def update(self, sequence: LiveSequence) -> None:
        while sequence.is_ready:
            item = sequence.pop()
            if self._add_inputs(item):
                self._batcher.enqueue(item.pending)

    def leave(self, sequence: LiveSequence) -> None:
        """Do nothing: its requests have left the batcher."""

    def requeue(self, items: Sequence[SequenceRequest]) -> None:
        self._batcher.requeue([item.pending for item in items])

    def reschedule(self, item: SequenceRequest) -> None:
        if self._add_inputs(item):
            self._batcher.reschedule(item.pending)

    def withdraw(self, item: SequenceRequest) -> None:
        """Remove a request that is about to be sent; it may return, or go to another instance."""
        self._batcher.remove(item.pending)
        if self._line is not None:
            self._line.withdraw(item.pending)

    def dispatch(self, now_ns: int) -> int:
        """Send the batches that are due; the batcher has a separate timer."""
        self._batcher.dispatch()
        return 0

    def close(self) -> None:
        """No requests wait any more."""
        self._batcher.close()

    def _add_inputs(self, item: SequenceRequest) -> bool:
        try:
            self._inputs.add(item)
        except InferenceError as error:
            self._owner.on_refused([item.pending], error)
            return False
        return True


SequenceStrategy = DirectStrategy | OldestStrategy
"""The batches of one instance."""


def make_strategy(
    config: SequenceConfig,
    inputs: SequenceInputs,
    shape_key: ShapeKey | None,
    delivery: OrderedDelivery | None,
    may_dispatch: MayDispatch | None,
    instance: BatchExecutor,
) -> SequenceStrategy:
    """Make the configured strategy for an instance.

    ``delivery`` keeps the order of responses at each instance; None if responses may be sent in any order.
    """
    if config.oldest is None:
        return DirectStrategy(config, instance, inputs, shape_key, may_dispatch)
    line = None if delivery is None else DeliveryLine(delivery)
    return OldestStrategy(config.oldest, instance, inputs, shape_key, line, may_dispatch)


def _arrival(sequence: LiveSequence) -> int:
    return sequence.front.pending.request.queued_ns
