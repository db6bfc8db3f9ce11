"""The slots of sequences: who has which, which are free, and who waits for one."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count

from pybackend.scheduler.scheduler import BatchExecutor
from pybackend.scheduler.sequence_strategies import SequenceStrategy
from pybackend.scheduler.sequences import LiveSequence, Slot


class SlotPool:
    """The free slots. Low numbers are used first, so that sequences spread over the instances.

    Each instance has at most ``slot_count``. A slot is created when the previous one at its instance is first taken.
    """

    def __init__(self, slot_count: int) -> None:
        self._instances: dict[int, BatchExecutor] = {}
        self._slot_count = slot_count
        self._made: dict[int, int] = {}
        self._free: list[Slot] = []
        self._parked: list[Slot] = []
        """Slots of instances that are known to be down."""

    def add(self, number: int, instance: BatchExecutor) -> None:
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


class SequenceSlots:
    """The sequences that have slots at instances, and those that wait for one.

    An instance that has left gets no new sequences, and keeps those that it has.
    """

    def __init__(self, slot_count: int, make_strategy: Callable[[BatchExecutor], SequenceStrategy]) -> None:
        # the sequences without a slot, in order of arrival
        self.backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        # make the batches of each instance's sequences, by the instance's number
        self.strategies: dict[int, SequenceStrategy] = {}
        self._make_strategy = make_strategy
        self._pool = SlotPool(slot_count)
        self._given_numbers = count()
        self._numbers: dict[object, int] = {}
        """The number of each present instance, and of each that left while sequences were at it."""
        self._served: dict[int, dict[LiveSequence, None]] = {}

    def change_instances(self, instances: Sequence[BatchExecutor]) -> None:
        """Offer the slots of these instances only."""
        for instance, number in list(self._numbers.items()):
            if instance not in instances and self._pool.offers(number):
                self._pool.remove(number)
                self._forget_if_unused(number)
        for instance in instances:
            if instance not in self._numbers:
                number = self._numbers[instance] = next(self._given_numbers)
                self._served[number] = {}
                self.strategies[number] = self._make_strategy(instance)
                self._pool.add(number, instance)

    def at(self, instance: object) -> Sequence[LiveSequence]:
        """The sequences that have slots at an instance."""
        number = self._numbers.get(instance)  # None for an instance that accepts no requests
        return () if number is None else list(self._served[number])

    def assign(self) -> None:
        """Give free slots to waiting sequences."""
        self._pool.revive()
        while self.backlog:
            slot = self._pool.acquire()
            if slot is None:
                return
            sequence, _ = self.backlog.popitem(last=False)
            sequence.slot = slot
            self._served[slot.instance][sequence] = None
            self.strategies[slot.instance].update(sequence)

    def leave(self, sequence: LiveSequence) -> None:
        """A sequence leaves its slot, or the backlog."""
        self.backlog.pop(sequence, None)
        slot = sequence.slot
        if slot is not None:
            self.strategies[slot.instance].leave(sequence)
            del self._served[slot.instance][sequence]
            self._pool.release(slot)
            sequence.slot = None
            self._forget_if_unused(slot.instance)

    def start_over(self, sequences: Sequence[LiveSequence]) -> None:
        """Let sequences leave their slots, and wait for others before all that are waiting."""
        for sequence in reversed(sequences):
            self.leave(sequence)
            self.backlog[sequence] = None
            self.backlog.move_to_end(sequence, last=False)

    def _forget_if_unused(self, number: int) -> None:
        """Forget an instance that has left, once no sequence is at it."""
        if self._served[number] or self._pool.offers(number):
            return
        self.strategies.pop(number).close()
        del self._served[number]
        self._numbers = {instance: known for instance, known in self._numbers.items() if known != number}

    def close(self) -> None:
        """No requests wait any more, and none will come."""
        for strategy in self.strategies.values():
            strategy.close()
