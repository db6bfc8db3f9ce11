"""The sequence batcher sends all requests of a sequence to the same instance, one after another.

A new sequence waits, in order of arrival, for a slot at an instance; it keeps the slot until its last request is
answered, or it has been idle for too long. A strategy combines the requests of an instance's sequences into batches.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, ResponsePath, to_sender
from pybackend.inference.request import RequestFlags
from pybackend.inference.response import InferenceResponse
from pybackend.modelconfig.sequences import SequenceConfig
from pybackend.scheduler.active_sequences import ActiveSequences
from pybackend.scheduler.dynamic_batcher import ShapeKey
from pybackend.scheduler.ordered_delivery import OrderedDelivery
from pybackend.scheduler.scheduler import BatchExecutor, Scheduler, SchedulerOwner
from pybackend.scheduler.sequence_inputs import ControlTensors, ImplicitStates, SequenceInputs
from pybackend.scheduler.sequence_slots import SequenceSlots
from pybackend.scheduler.sequence_strategies import make_strategy
from pybackend.scheduler.sequences import LiveSequence, SequenceRequest
from pybackend.scheduler.timing import Deadlines, DispatchBarrier, PreciseTimer

log = logging.getLogger(__name__)


class SequenceEnds:
    """Ends sequences."""

    def __init__(
        self,
        config: SequenceConfig,
        owner: SchedulerOwner,
        active: ActiveSequences,
        slots: SequenceSlots,
        on_change: Callable[[LiveSequence], None],
    ) -> None:
        self.idle_deadlines = Deadlines(active.holds)  # when sequences may have been idle for too long
        self.slot_deadlines = Deadlines(self._awaits_slot)  # when the sequences of requests must have got slots
        self._model_name = config.model_name
        self._idle_ns = config.idle_us * 1000
        self._owner = owner
        self._active = active
        self._slots = slots
        self._on_change = on_change

    def close(self, sequence: LiveSequence) -> None:
        """A sequence is over: others get its slot and its id."""
        self._slots.leave(sequence)
        sequence.over = True
        self._active.end(sequence)

    def lose(self, sequence: LiveSequence, cause: str) -> None:
        """A sequence cannot go on: its waiting requests are refused soon, and later ones until it has been idle for too long."""
        sequence.lost = InferenceError(
            f"sequence {sequence.id} of model '{self._model_name}' is ended: {cause.removesuffix('.')}. "
            "The model's state for it is lost: start it again with the START flag",
            ErrorCode.UNAVAILABLE,
        )
        self._on_change(sequence)

    def drop(self, item: SequenceRequest) -> None:
        """A request will not be executed."""
        if item.pending.request.flags & RequestFlags.SEQUENCE_START and item.sequence.lost is None:
            # The model would mistake later requests for parts of another sequence.
            self.lose(item.sequence, "its first request was not executed")

    def refuse(self, sequence: LiveSequence, error: InferenceError) -> None:
        """Refuse a sequence's waiting requests."""
        waiting = [item.pending for item in sequence.waiting]
        sequence.waiting.clear()
        self._owner.on_refused(waiting, error)

    def ring(self, now_ns: int) -> None:
        """End the sequences whose deadlines have passed."""
        while (item := self.slot_deadlines.pop_due(now_ns)) is not None:
            sequence = item.sequence
            self.close(sequence)
            text = "timeout of the corresponding sequence has been expired"
            sequence.lost = InferenceError(text, ErrorCode.UNAVAILABLE)
            self.refuse(sequence, sequence.lost)
        while (idle := self.idle_deadlines.pop_due(now_ns)) is not None:
            self._check_idle(idle, now_ns)

    def _awaits_slot(self, item: SequenceRequest) -> bool:
        return item.sequence in self._slots.backlog and not item.pending.answered

    def _check_idle(self, sequence: LiveSequence, now_ns: int) -> None:
        due_ns = (sequence.active_ns if sequence.is_idle else now_ns) + self._idle_ns
        if due_ns > now_ns:
            self.idle_deadlines.add(due_ns, sequence, len(self._active))
            return
        if sequence.lost is None:
            text = "sequence %s of model '%s' has ended: it was idle for %g s (max_sequence_idle_microseconds)"
            log.info(text, sequence.id, self._model_name, self._idle_ns / 1e9)
        self.close(sequence)


class SequenceBatcher(Scheduler):
    """The requests of sequences, in front of instances, and a stage of the response path.

    A barrier keeps the first requests in their slots. Clients that name no outputs get those of ``output_names``.
    """

    waits_for_answers = True

    def __init__(
        self,
        config: SequenceConfig,
        states: ImplicitStates,
        instances: Sequence[BatchExecutor],
        owner: SchedulerOwner,
        output_names: Sequence[str],
        shape_key: ShapeKey | None = None,
        pass_on: ResponsePath = to_sender,
        barrier: DispatchBarrier | None = None,
    ) -> None:
        super().__init__()
        self._config = config
        self._states = states
        self._output_names = output_names
        self._pass_on = pass_on
        controls = ControlTensors(config)
        inputs = SequenceInputs(controls, states, owner)
        is_ordered = config.oldest is not None and config.oldest.preserve_ordering
        delivery = OrderedDelivery(self.on_response) if is_ordered else None
        # must receive all responses of the model: this stage, after ordered delivery if that is configured
        self.path: ResponsePath = self.on_response if delivery is None else delivery.on_response
        may_dispatch = None if barrier is None else partial(self._may_dispatch, barrier)
        self._instances = instances
        self._slots = SequenceSlots(
            config.slot_count, partial(make_strategy, config, inputs, shape_key, delivery, may_dispatch)
        )
        self._slots.change_instances(instances)
        self.active = ActiveSequences(config, controls)  # the sequences that clients can continue
        self._items: dict[PendingRequest, SequenceRequest] = {}
        self._changed: dict[LiveSequence, None] = {}
        """Sequences to be looked at before the loop's next turn."""
        self._idle_ns = config.idle_us * 1000
        self._ends = SequenceEnds(config, owner, self.active, self._slots, self._note)
        self._timer = PreciseTimer(self.dispatch)

    def __len__(self) -> int:
        return sum([pending.is_waiting for pending in self._items])

    def _may_dispatch(self, barrier: DispatchBarrier, _waiting: int = 0) -> bool:
        in_backlog = sum(len(sequence.waiting) for sequence in self._slots.backlog)
        return barrier.is_open(len(self) - in_backlog, in_backlog)

    # Arrival and departure of requests

    def enqueue(self, pending: PendingRequest) -> None:
        request = pending.request
        now_ns = time.monotonic_ns()
        sequence = self.active.of(request, now_ns)
        is_last = request.flags & RequestFlags.SEQUENCE_END or self._config.iterative
        if sequence.slot is None and sequence not in self._slots.backlog:  # it is new
            self._slots.backlog[sequence] = None
            if not is_last:
                self._ends.idle_deadlines.add(now_ns + self._idle_ns, sequence, len(self.active))
        sequence.active_ns = now_ns
        if is_last:
            sequence.ended = True
            self.active.end(sequence)
        item = SequenceRequest(pending, sequence)
        self._items[pending] = item
        sequence.waiting[item] = None
        if sequence.slot is None and item.deadline_ns:
            self._ends.slot_deadlines.add(item.deadline_ns, item, len(self._items))
        self._note(sequence)

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Store the states in a response, continue its sequence if the response is final, and pass it on."""
        item = self._items.get(pending)
        if item is not None:
            if self._states.states and response.error is None:
                self._states.keep(response, item.sequence.states, item.requested or self._output_names)
            if response.final:
                self._finish(item)
        self._pass_on(pending, response)

    def _finish(self, item: SequenceRequest) -> None:
        del self._items[item.pending]
        sequence = item.sequence
        sequence.active_ns = time.monotonic_ns()
        sequence.forget(item)
        if item.pending.execution:
            sequence.begun = True
        else:
            self._ends.drop(item)
        self._note(sequence)

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        by_instance: dict[int, list[SequenceRequest]] = {}
        for pending in waiting:
            if pending.is_filler:
                pending.request.release()
                continue
            item = self._items[pending]
            assert item.sequence.slot is not None
            by_instance.setdefault(item.sequence.slot.instance, []).append(item)
            self._note(item.sequence)
        for number, items in by_instance.items():
            self._slots.strategies[number].requeue(items)

    def reschedule(self, pending: PendingRequest) -> None:
        item = self._items[pending]
        sequence = item.sequence
        assert sequence.slot is not None
        sequence.begun = True
        sequence.active_ns = time.monotonic_ns()
        pending.request.flags = 0
        self._slots.strategies[sequence.slot.instance].reschedule(item)

    def remove(self, pending: PendingRequest) -> Sequence[PendingRequest]:
        """Remove a waiting request and all others of its sequence that wait; they are answered later."""
        sequence = self._items[pending].sequence
        items = [item for item in (sequence.current, *sequence.waiting) if item is not None and item.pending.is_waiting]
        for item in items:
            self._remove(item)
        return [item.pending for item in items]

    def _remove(self, item: SequenceRequest) -> None:
        sequence = item.sequence
        if sequence.current is item:
            assert sequence.slot is not None
            self._slots.strategies[sequence.slot.instance].withdraw(item)
        sequence.forget(item)
        self._ends.drop(item)
        self._note(sequence)

    def take_all(self) -> list[PendingRequest]:
        taken = [pending for pending in self._items if pending.is_waiting and not pending.answered]
        for pending in taken:
            self._remove(self._items[pending])
        return taken

    def close(self) -> None:
        self._timer.close()
        self._slots.close()

    # Instances

    def change_instances(self) -> None:
        self._slots.change_instances(self._instances)
        self._schedule()

    def keeps(self, instance: object) -> bool:
        return bool(self._slots.at(instance))

    def on_lost(self, instance: object, error: InferenceError) -> None:
        """Sequences that had started at the instance cannot continue, the others start elsewhere."""
        elsewhere = []
        for sequence in self._slots.at(instance):
            current = sequence.current
            if current is not None and not current.pending.answered:
                assert sequence.slot is not None
                self._slots.strategies[sequence.slot.instance].withdraw(current)
                sequence.put_back(current)
            elif current is not None and current.pending.execution:
                sequence.begun = True  # its failure is on its way
            if sequence.begun:
                self._ends.lose(sequence, error.message)
            else:
                elsewhere.append(sequence)
        self._slots.start_over(elsewhere)

    # Progress of sequences

    def dispatch(self) -> None:
        """Give slots to waiting sequences, and send due requests to free instances."""
        self._is_scheduled = False
        now_ns = time.monotonic_ns()
        ends = self._ends
        if 0 < ends.slot_deadlines.first_ns <= now_ns or 0 < ends.idle_deadlines.first_ns <= now_ns:
            ends.ring(now_ns)
        changed, self._changed = self._changed, {}
        for sequence in changed:
            self._advance(sequence)
        if self._slots.backlog:
            self._slots.assign()
        due_ns = [strategy.dispatch(now_ns) for strategy in list(self._slots.strategies.values())]
        due_ns += (ends.slot_deadlines.first_ns, ends.idle_deadlines.first_ns)
        self._timer.set(min(filter(None, due_ns), default=0))

    def _note(self, sequence: LiveSequence) -> None:
        """Process a sequence before the loop's next turn."""
        self._changed[sequence] = None
        self._schedule()

    def _advance(self, sequence: LiveSequence) -> None:
        """Act on a sequence's changed state."""
        if sequence.over:
            return
        if sequence.lost is not None:
            self._ends.refuse(sequence, sequence.lost)
            if sequence.current is None:
                self._slots.leave(sequence)
                sequence.over = not self.active.holds(sequence)
        elif sequence.is_idle and sequence.ended:
            self._ends.close(sequence)
        elif sequence.slot is not None:
            self._slots.strategies[sequence.slot.instance].update(sequence)
