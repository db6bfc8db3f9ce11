"""The sequence batcher sends all requests of a sequence to the same instance, one after another.

A new sequence waits, in order of arrival, for a slot at an instance; it keeps the slot until its last request is
answered, or it has been idle for too long. The lanes combine the slots' requests into batches.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from pybackend.errors import ErrorCode, InferenceError, UnknownSequenceError
from pybackend.inference.pending import PendingRequest, ResponsePath, to_sender
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.inference.response import InferenceResponse
from pybackend.loop_turn import loop_turn_of
from pybackend.modelconfig.sequences import SequenceConfig
from pybackend.scheduler.ordered_delivery import OrderedDelivery
from pybackend.scheduler.request_queue import PreciseTimer, QueueHold
from pybackend.scheduler.scheduler import BatchExecutor, SchedulerOwner
from pybackend.scheduler.sequence_inputs import ControlTensors, SequenceInputs
from pybackend.scheduler.sequence_lanes import SequenceLane, make_lane
from pybackend.scheduler.sequence_slots import LiveSequence, SequenceRequest, SlotPool
from pybackend.scheduler.sequence_state import ImplicitStates

log = logging.getLogger(__name__)


class SequenceBatcher:
    """Slots in front of instances, and a stage of the response path.

    Args:
        instances: the instances that accept requests; see :meth:`change_instances`.
        owner: notified of requests that will not be executed.
        output_names: outputs for clients that request none by name.
        shape_key: requests in a batch must have equal keys; None if any requests may share a batch.
        pass_on: receives the responses after this stage.
        hold: keeps the first requests in their slots; None for no hold.

    Attributes:
        path: must receive all responses of the model: this stage, after ordered delivery if that is configured.
        on_all_ended: called when the last active sequence has ended; None if nothing waits for that.
    """

    def __init__(
        self,
        config: SequenceConfig,
        states: ImplicitStates,
        instances: Sequence[BatchExecutor],
        owner: SchedulerOwner,
        output_names: Sequence[str],
        shape_key: Callable[[InferenceRequest], object] | None = None,
        pass_on: ResponsePath = to_sender,
        hold: QueueHold | None = None,
    ) -> None:
        self._turn = loop_turn_of(asyncio.get_running_loop())
        self._config = config
        self._states = states
        self._owner = owner
        self._output_names = output_names
        self._controls = ControlTensors(config)
        inputs = SequenceInputs(self._controls, states, owner)
        self._pass_on = pass_on
        is_ordered = config.oldest is not None and config.oldest.preserve_ordering
        delivery = OrderedDelivery(self.on_response) if is_ordered else None
        self.path: ResponsePath = self.on_response if delivery is None else delivery.on_response
        self._make_lane = partial(make_lane, config, owner=owner, inputs=inputs, shape_key=shape_key, delivery=delivery)
        self._instances = instances
        self._hold = hold
        self._lanes: dict[int, SequenceLane] = {}
        self._numbers: dict[object, int] = {}
        """The number of each present instance, and of each that left while sequences were at it."""
        self._served: dict[int, dict[LiveSequence, None]] = {}
        self._pool = SlotPool(config.slot_count)
        self._given_numbers = count()
        for instance in instances:
            self._add(instance)
        self._live: dict[int | str, LiveSequence] = {}
        """Active sequences by id; excludes those whose last request has arrived."""
        self._backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        self._items: dict[PendingRequest, SequenceRequest] = {}
        self._sent_count = 0
        """Number of requests that instances hold."""
        self._changed: dict[LiveSequence, None] = {}
        self._idle_ns = config.idle_us * 1000
        self._alarms: list[tuple[int, int, LiveSequence | SequenceRequest]] = []
        self._alarm_numbers = count()
        self._given_ids = count(1)
        self._timer = PreciseTimer(self.dispatch)
        self._scheduled = False
        self.on_all_ended: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._items) - self._sent_count

    def continues(self, correlation_id: int | str) -> bool:
        """True if an active sequence has this id: its next request belongs here."""
        return correlation_id in self._live

    @property
    def has_active(self) -> bool:
        """True while further requests of a sequence may come."""
        return bool(self._live)

    def _is_over(self, hold: QueueHold) -> bool:
        in_backlog = sum(len(sequence.waiting) for sequence in self._backlog)
        return hold.is_over(len(self) - in_backlog, in_backlog)

    # Arrival and departure of requests

    def enqueue(self, pending: PendingRequest) -> None:
        """Accept a request of a sequence.

        Raises:
            InferenceError: INVALID_ARG, it names no sequence, or one that has not started; UNAVAILABLE, the sequence
                cannot continue because its instance's process died.
        """
        request = pending.request
        now_ns = time.monotonic_ns()
        sequence = self._sequence_of(request, now_ns)
        sequence.active_ns = now_ns
        if request.flags & RequestFlags.SEQUENCE_END or self._config.iterative:
            sequence.ended = True
            self._live.pop(sequence.id, None)
            self._tell_if_all_ended()
        item = SequenceRequest(pending, sequence)
        self._items[pending] = item
        sequence.waiting[item] = None
        if sequence.slot is None and item.deadline_ns:
            self._set_alarm(item.deadline_ns, item)
        self._note(sequence)

    def _sequence_of(self, request: InferenceRequest, now_ns: int) -> LiveSequence:
        model = f"model '{self._config.model_name}'"
        if request.batch_size > 1:
            raise _invalid(
                f"inference request to {model} must specify batch-size 1 due to requirements of sequence batcher"
            )
        if self._config.iterative:
            return self._iterative(request, now_ns)
        if not request.correlation_id:
            raise _invalid(f"inference request to {model} must specify a non-zero or non-empty correlation ID")
        self._controls.check_id(request)
        sequence = self._live.get(request.correlation_id)
        if request.flags & RequestFlags.SEQUENCE_START:
            if sequence is not None and sequence.lost is None:
                log.warning("sequence %s of %s starts again although it has not ended", request.correlation_id, model)
                return sequence
            return self._begin(request.correlation_id, now_ns)
        if sequence is None:
            raise UnknownSequenceError(
                f"inference request for sequence {request.correlation_id} to {model} must specify the START flag on the "
                "first request of the sequence",
                ErrorCode.INVALID_ARG,
            )
        if sequence.lost is not None:
            raise sequence.lost.again()
        return sequence

    def _begin(self, correlation_id: int | str, now_ns: int) -> LiveSequence:
        sequence = LiveSequence(correlation_id, now_ns)
        self._live[correlation_id] = sequence
        self._backlog[sequence] = None
        self._set_alarm(now_ns + self._idle_ns, sequence)
        return sequence

    def _iterative(self, request: InferenceRequest, now_ns: int) -> LiveSequence:
        """Each request is a separate sequence, whatever its id."""
        if not request.correlation_id:
            number = next(self._given_ids)
            request.correlation_id = str(number) if self._controls.wants_text_ids else number
        self._controls.check_id(request)
        request.flags |= int(RequestFlags.SEQUENCE_START)
        sequence = LiveSequence(request.correlation_id, now_ns)
        self._backlog[sequence] = None
        return sequence

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Store the states in a response, continue its sequence if the response is final, and pass it on."""
        item = self._items.get(pending)
        if item is not None:
            if self._states.states and response.error is None:
                self._states.keep(response, item.sequence.states, item.requested or self._output_names)
            if response.final:
                self._finish(item)
        self._pass_on(pending, response)

    def _on_sent(self, batch: Sequence[PendingRequest]) -> None:
        for pending in batch:
            if not pending.is_filler:
                self._items[pending].sent = True
                self._sent_count += 1

    def _come_back(self, item: SequenceRequest) -> None:
        """No instance holds the request any more."""
        self._sent_count -= item.sent
        item.sent = False

    def _finish(self, item: SequenceRequest) -> None:
        """A request was answered."""
        del self._items[item.pending]
        self._come_back(item)
        sequence = item.sequence
        sequence.active_ns = time.monotonic_ns()
        if sequence.current is item:
            sequence.current = None
        else:
            sequence.waiting.pop(item, None)
        if item.pending.execution:
            sequence.begun = True
        else:
            self._drop(item)
        self._note(sequence)

    def _drop(self, item: SequenceRequest) -> None:
        """A request will not be executed."""
        if item.pending.request.flags & RequestFlags.SEQUENCE_START and item.sequence.lost is None:
            # The model would mistake later requests for parts of another sequence.
            self._lose(item.sequence, "its first request was not executed")

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        """Return requests to their places in the queue."""
        by_lane: dict[int, list[SequenceRequest]] = {}
        for pending in waiting:
            if pending.is_filler:
                pending.request.release()
                continue
            item = self._items[pending]
            self._come_back(item)
            assert item.sequence.slot is not None
            by_lane.setdefault(item.sequence.slot.instance, []).append(item)
            self._note(item.sequence)
        for number, items in by_lane.items():
            self._lanes[number].requeue(items)

    def reschedule(self, pending: PendingRequest) -> None:
        """Accept an executed request again, because the model asked for another execution."""
        item = self._items[pending]
        self._come_back(item)
        sequence = item.sequence
        assert sequence.slot is not None
        sequence.begun = True
        sequence.active_ns = time.monotonic_ns()
        pending.request.flags = 0
        self._lanes[sequence.slot.instance].reschedule(item)

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
            self._lanes[sequence.slot.instance].withdraw(item)
            sequence.current = None
        else:
            sequence.waiting.pop(item, None)
        self._drop(item)
        self._note(sequence)

    def take_all(self) -> list[PendingRequest]:
        """Remove all waiting requests, so that the caller can answer those that cannot be served."""
        taken = [pending for pending in self._items if pending.is_waiting and not pending.answered]
        for pending in taken:
            self._remove(self._items[pending])
        return taken

    def close(self) -> None:
        """Close the scheduler; no more requests will be enqueued."""
        self._timer.close()
        for lane in self._lanes.values():
            lane.close()

    # Instances

    def _add(self, instance: BatchExecutor) -> None:
        number = next(self._given_numbers)
        self._numbers[instance] = number
        self._served[number] = {}
        counting: BatchExecutor = _CountingInstance(instance, self._on_sent)
        if self._hold is not None:
            counting = _HeldInstance(counting, partial(self._is_over, self._hold))
        self._lanes[number] = self._make_lane(counting)
        self._pool.add(number, instance)

    def change_instances(self) -> None:
        """The list of instances has changed. One that has left gets no new sequences, and keeps those that it has."""
        for instance, number in list(self._numbers.items()):
            if instance not in self._instances and self._pool.offers(number):
                self._pool.remove(number)
                self._forget_if_unused(number)
        for instance in self._instances:
            if instance not in self._numbers:
                self._add(instance)
        self._schedule()

    def keeps(self, instance: object) -> bool:
        """True while sequences are at an instance."""
        number = self._numbers.get(instance)
        return number is not None and bool(self._served[number])

    def _forget_if_unused(self, number: int) -> None:
        """Forget an instance that has left, once no sequence is at it."""
        if self._served[number] or self._pool.offers(number):
            return
        self._lanes.pop(number).close()
        del self._served[number]
        self._numbers = {instance: known for instance, known in self._numbers.items() if known != number}

    # Slots

    def dispatch(self) -> None:
        """Give slots to waiting sequences, and send due requests to free instances."""
        now_ns = time.monotonic_ns()
        self._ring(now_ns)
        changed, self._changed = self._changed, {}
        for sequence in changed:
            self._advance(sequence)
        if self._backlog:
            self._assign()
        due_ns = [lane.dispatch(now_ns) for lane in list(self._lanes.values())]
        if self._alarms:
            due_ns.append(self._alarms[0][0])
        self._timer.set(min(filter(None, due_ns), default=0))

    def _note(self, sequence: LiveSequence) -> None:
        """Process a sequence before the loop's next turn."""
        self._changed[sequence] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._turn.soon(self._dispatch_scheduled)

    def _dispatch_scheduled(self) -> None:
        self._scheduled = False
        self.dispatch()

    def _advance(self, sequence: LiveSequence) -> None:
        """Act on a sequence's changed state."""
        if sequence.over:
            return
        if sequence.lost is not None:
            self._refuse(sequence, sequence.lost)
            if sequence.current is None:
                self._leave(sequence)
                sequence.over = self._live.get(sequence.id) is not sequence
        elif sequence.is_idle and sequence.ended:
            self._close(sequence)
        elif sequence.slot is not None:
            self._lanes[sequence.slot.instance].update(sequence)

    def _assign(self) -> None:
        self._pool.revive()
        while self._backlog:
            slot = self._pool.acquire()
            if slot is None:
                return
            sequence, _ = self._backlog.popitem(last=False)
            sequence.slot = slot
            self._served[slot.instance][sequence] = None
            self._lanes[slot.instance].update(sequence)

    def _leave(self, sequence: LiveSequence) -> None:
        """A sequence leaves its slot, or the queue for a slot."""
        self._backlog.pop(sequence, None)
        slot = sequence.slot
        if slot is not None:
            self._lanes[slot.instance].leave(sequence)
            del self._served[slot.instance][sequence]
            self._pool.release(slot)
            sequence.slot = None
            self._forget_if_unused(slot.instance)

    def _close(self, sequence: LiveSequence) -> None:
        self._leave(sequence)
        sequence.over = True
        if self._live.get(sequence.id) is sequence:
            del self._live[sequence.id]
        self._tell_if_all_ended()

    def _tell_if_all_ended(self) -> None:
        if self.on_all_ended is not None and not self._live:
            self.on_all_ended()

    # Sequences that cannot continue

    def on_lost(self, instance: object, error: InferenceError) -> None:
        """An instance's process died: sequences that had started there cannot continue, the others start elsewhere."""
        number = self._numbers.get(instance)
        if number is None:  # an instance that accepts no requests
            return
        elsewhere = []
        for sequence in list(self._served[number]):
            current = sequence.current
            if current is not None and not current.pending.answered:
                self._lanes[number].withdraw(current)
                sequence.put_back(current)
            elif current is not None and current.pending.execution:
                sequence.begun = True  # its failure is on its way
            if sequence.begun:
                self._lose(sequence, error.message)
            else:
                elsewhere.append(sequence)
        for sequence in reversed(elsewhere):
            self._leave(sequence)
            self._backlog[sequence] = None
            self._backlog.move_to_end(sequence, last=False)

    def _lose(self, sequence: LiveSequence, cause: str) -> None:
        """End a sequence: its waiting requests are refused soon, and later ones get the reason for a limited time."""
        sequence.lost = InferenceError(
            f"sequence {sequence.id} of model '{self._config.model_name}' is ended: {cause.removesuffix('.')}. "
            "The model's state for it is lost: start it again with the START flag",
            ErrorCode.UNAVAILABLE,
        )
        self._note(sequence)

    def _refuse(self, sequence: LiveSequence, error: InferenceError) -> None:
        waiting = list(sequence.waiting)
        sequence.waiting.clear()
        for item in waiting:
            self._owner.on_rejected(item.pending, error)

    # Time

    def _set_alarm(self, due_ns: int, of: LiveSequence | SequenceRequest) -> None:
        heapq.heappush(self._alarms, (due_ns, next(self._alarm_numbers), of))
        if len(self._alarms) > 2 * (len(self._live) + len(self._items)) + 64:  # most alarms are obsolete
            self._alarms = [alarm for alarm in self._alarms if self._is_awaited(alarm[2])]
            heapq.heapify(self._alarms)

    def _is_awaited(self, of: LiveSequence | SequenceRequest) -> bool:
        if isinstance(of, SequenceRequest):
            return of.pending in self._items and of.sequence in self._backlog
        return self._live.get(of.id) is of

    def _ring(self, now_ns: int) -> None:
        while self._alarms and self._alarms[0][0] <= now_ns:
            of = heapq.heappop(self._alarms)[2]
            if not self._is_awaited(of):
                continue
            if isinstance(of, SequenceRequest):
                self._expire(of.sequence)
            else:
                self._check_idle(of, now_ns)

    def _expire(self, sequence: LiveSequence) -> None:
        """A sequence did not get a slot in time."""
        self._close(sequence)
        sequence.lost = InferenceError("timeout of the corresponding sequence has been expired", ErrorCode.UNAVAILABLE)
        self._refuse(sequence, sequence.lost)

    def _check_idle(self, sequence: LiveSequence, now_ns: int) -> None:
        due_ns = (sequence.active_ns if sequence.is_idle else now_ns) + self._idle_ns
        if due_ns > now_ns:
            self._set_alarm(due_ns, sequence)
            return
        if sequence.lost is None:
            log.info(
                "sequence %s of model '%s' has ended: it was idle for %g s (max_sequence_idle_microseconds)",
                sequence.id,
                self._config.model_name,
                self._idle_ns / 1e9,
            )
        self._close(sequence)


class _CountingInstance:
    """A lane's view of an instance, which reports sent requests to the batcher."""

    def __init__(self, instance: BatchExecutor, on_sent: Callable[[Sequence[PendingRequest]], None]) -> None:
        self._instance = instance
        self._on_sent = on_sent

    @property
    def is_idle(self) -> bool:
        return self._instance.is_idle

    @property
    def prefetch_capacity(self) -> int:
        return self._instance.prefetch_capacity

    @property
    def is_up(self) -> bool:
        return self._instance.is_up

    def execute(self, batch: list[PendingRequest]) -> None:
        self._on_sent(batch)
        self._instance.execute(batch)


class _HeldInstance:
    """A lane's view of an instance that seems busy until a hold is over."""

    def __init__(self, instance: BatchExecutor, is_over: Callable[[], bool]) -> None:
        self._instance = instance
        self._is_over = is_over
        self.execute = instance.execute

    @property
    def is_idle(self) -> bool:
        return self._is_over() and self._instance.is_idle

    @property
    def prefetch_capacity(self) -> int:
        return self._instance.prefetch_capacity if self._is_over() else 0

    @property
    def is_up(self) -> bool:
        return self._instance.is_up


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, ErrorCode.INVALID_ARG)
