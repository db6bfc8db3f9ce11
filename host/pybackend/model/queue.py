"""Cancels and describes a version's waiting requests: those in its scheduler, and those being looked up in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, RunningExecution
from pybackend.instance.model_instance import ModelInstance
from pybackend.model.cached_answers import CachedAnswers
from pybackend.model.outcomes import RequestOutcomes
from pybackend.scheduler.scheduler import Scheduler

_SEQUENCE_CANCELLED = InferenceError("a client cancelled another request of the same sequence", ErrorCode.CANCELLED)


class ModelQueue:
    """Answers the questions of handles (see :class:`pybackend.inference.pending.RequestHolder`) about requests that wait in the scheduler.

    Attributes:
        scheduler: dispatches the requests.
        answers: the cached answers, which see requests first; None if all requests are executed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        answers: CachedAnswers | None,
        instances: Sequence[ModelInstance],
        outcomes: RequestOutcomes,
    ) -> None:
        self.scheduler = scheduler
        self.answers = answers
        self._instances = instances
        self._outcomes = outcomes

    def cancel(self, pending: PendingRequest) -> None:
        """Drop a waiting request; its sender is answered on the next loop turn, as for every request.

        If it belongs to a sequence, so are the senders of the sequence's other waiting requests.
        """
        if self.answers is not None and self.answers.concerns(pending):
            return  # the lookup notices the cancellation
        for removed in self.scheduler.remove(pending):
            self._outcomes.on_dropped(removed, CANCELLED if removed is pending else _SEQUENCE_CANCELLED)

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Do nothing: waiting requests receive no responses, and their instance will check whether they are paused."""

    def is_running(self, pending: PendingRequest) -> bool:
        """Always False: a waiting request has not started."""
        return False

    def blockers(self, pending: PendingRequest) -> Sequence[RunningExecution]:
        """All running executions, unless an instance has room for one more."""
        return () if any(instance.has_place for instance in self._instances) else self.running

    @property
    def running(self) -> list[RunningExecution]:
        """The executions that are running in stubs."""
        return [execution for instance in self._instances for execution in instance.running]
