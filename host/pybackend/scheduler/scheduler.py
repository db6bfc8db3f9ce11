"""What every scheduler is to the model it serves, and what instances and the model are to a scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.tensor import Lease


class BatchReason(StrEnum):
    """Why a batch was sent with no more requests than it had."""

    FULL = "full"
    """Nothing more fits: it has the largest size, or the next request is too large or of another shape."""
    PREFERRED = "preferred"
    """It has a preferred size."""
    DELAY = "delay"
    """Its oldest request has waited for as long as it may."""
    IDLE = "idle"
    """An instance was free, and no delay is configured."""


class BatchExecutor(Protocol):
    """An instance, as far as a scheduler cares."""

    @property
    def is_idle(self) -> bool:
        """True if an execution would start at once."""

    @property
    def room(self) -> int:
        """How many short executions may be sent ahead although another one runs."""

    @property
    def is_up(self) -> bool:
        """True if there is a process that can serve, be it busy or not."""

    def execute(self, batch: list[PendingRequest]) -> None:
        """Run ``execute`` on these requests."""


class SchedulerOwner(Protocol):
    """The model, as far as a scheduler cares."""

    def on_rejected(self, pending: PendingRequest, error: InferenceError) -> None:
        """A request will not be executed, e.g. because it has waited for too long: answer it."""

    def lease(self, nbytes: int, name: str) -> Lease:
        """Input memory, for what the scheduler adds to requests.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """

    def on_batch(self, reason: BatchReason) -> None:
        """A batch was put together and sent."""


class Scheduler(Protocol):
    """A queue in front of a model's instances."""

    def __len__(self) -> int:
        """Number of requests that wait."""

    def enqueue(self, pending: PendingRequest) -> None:
        """Take a request; it is handed out in one of the loop's next turns, never from inside this call.

        Raises:
            InferenceError: it is not taken.
        """

    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        """Put requests back to where they were: an instance had them, and has not begun them."""

    def reschedule(self, pending: PendingRequest) -> None:
        """Take a request that was executed and is to be executed once more: the model is not through with it."""

    def on_lost(self, instance: object, error: InferenceError) -> None:
        """The process of one of the instances is dead, and what the model kept there is gone; ``error`` says why.

        What it had begun is answered by then, and what it had not begun is here again.
        """

    def remove(self, pending: PendingRequest) -> None:
        """Forget a request that waits."""

    def take_all(self) -> list[PendingRequest]:
        """Empty the queue, for whoever has to answer what cannot be served."""

    def dispatch(self) -> None:
        """Hand out what instances can take now; called whenever an instance may have become free."""

    def close(self) -> None:
        """Nothing will be enqueued any more, and nothing waits."""
