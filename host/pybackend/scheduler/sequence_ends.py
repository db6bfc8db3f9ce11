"""The ends of sequences: of those that are over, and of those that cannot or must not go on."""

import logging
from collections.abc import Callable

from pybackend.errors import ErrorCode, InferenceError
from pybackend.modelconfig.sequences import SequenceConfig
from pybackend.scheduler.active_sequences import ActiveSequences
from pybackend.scheduler.scheduler import SchedulerOwner
from pybackend.scheduler.sequence_slots import SequenceSlots
from pybackend.scheduler.sequences import LiveSequence, SequenceRequest
from pybackend.scheduler.timing import Deadlines

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
