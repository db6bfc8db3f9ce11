"""The sequences that clients can continue, by correlation id."""

import logging
from collections.abc import Callable
from itertools import count

from pybackend.errors import ErrorCode, InferenceError, UnknownSequenceError
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.modelconfig.sequences import SequenceConfig
from pybackend.scheduler.sequence_inputs import ControlTensors
from pybackend.scheduler.sequences import LiveSequence

log = logging.getLogger(__name__)


class ActiveSequences:
    """Finds the sequence of each request, or begins it.

    Those whose last request has arrived are not active any more.
    """

    def __init__(self, config: SequenceConfig, controls: ControlTensors) -> None:
        # called when the last active sequence has ended; None if nothing waits for that
        self.on_all_ended: Callable[[], None] | None = None
        self._config = config
        self._controls = controls
        self._by_id: dict[int | str, LiveSequence] = {}
        self._given_ids = count(1)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ids(self) -> frozenset[int | str]:
        return frozenset(self._by_id)

    def continues(self, correlation_id: int | str) -> bool:
        """True if an active sequence has this id: its next request belongs here."""
        return correlation_id in self._by_id

    def holds(self, sequence: LiveSequence) -> bool:
        return self._by_id.get(sequence.id) is sequence

    def of(self, request: InferenceRequest, now_ns: int) -> LiveSequence:
        """The sequence of a request that has arrived; a new one if the request begins it.

        Raises:
            InferenceError: INVALID_ARG, it names no sequence, or one that has not started; UNAVAILABLE, the sequence
                cannot continue because its instance's process died.
        """
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
        sequence = self._by_id.get(request.correlation_id)
        if request.flags & RequestFlags.SEQUENCE_START:
            if sequence is not None and sequence.lost is None:
                log.warning("sequence %s of %s starts again although it has not ended", request.correlation_id, model)
                return sequence
            sequence = self._by_id[request.correlation_id] = LiveSequence(request.correlation_id, now_ns)
        if sequence is None:
            raise UnknownSequenceError(
                f"inference request for sequence {request.correlation_id} to {model} must specify the START flag on the "
                "first request of the sequence",
                ErrorCode.INVALID_ARG,
            )
        if sequence.lost is not None:
            raise sequence.lost.again()
        return sequence

    def _iterative(self, request: InferenceRequest, now_ns: int) -> LiveSequence:
        """Each request is a separate sequence, whatever its id."""
        if not request.correlation_id:
            number = next(self._given_ids)
            request.correlation_id = str(number) if self._controls.wants_text_ids else number
        self._controls.check_id(request)
        request.flags |= RequestFlags.SEQUENCE_START
        return LiveSequence(request.correlation_id, now_ns)

    def end(self, sequence: LiveSequence) -> None:
        """No further requests of a sequence are accepted."""
        if self.holds(sequence):
            del self._by_id[sequence.id]
        if self.on_all_ended is not None and not self._by_id:
            self.on_all_ended()


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, ErrorCode.INVALID_ARG)
