"""The interfaces between a scheduler, the instances and the model."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.tensor import Lease
from pybackend.loop_turn import loop_turn_of


class BatchReason(StrEnum):
    """The reason for a batch's size."""

    FULL = "full"
    """Nothing more fits: the batch has its maximum size, or the next request is too large or has another shape."""
    PREFERRED = "preferred"
    """The batch has a preferred size."""
    DELAY = "delay"
    """The batch's oldest request has reached the maximum queue delay."""
    IDLE = "idle"
    """An instance was free, and no delay is configured."""


class BatchExecutor(Protocol):
    """An instance, as schedulers see it."""

    @property
    def is_idle(self) -> bool:
        """True if an execution would start immediately."""

    @property
    def prefetch_capacity(self) -> int:
        """Number of short executions that may be sent ahead while another one runs."""

    @property
    def is_up(self) -> bool:
        """True if there is a process that can serve, whether busy or idle."""

    def execute(self, batch: list[PendingRequest]) -> None:
        """Run ``execute`` on these requests."""


class SchedulerOwner(NamedTuple):
    """The model, as schedulers see it."""

    # answers requests that will not be executed, e.g. because they timed out
    on_refused: Callable[[Sequence[PendingRequest], InferenceError], None]
    # allocates input memory for tensors that the scheduler adds to requests
    lease: Callable[[int], Lease]
    # is told of each batch that was sent
    on_batch: Callable[[BatchReason], None]


class Scheduler(ABC):
    """A queue in front of a model's instances.

    All that changes in one turn of the event loop is dispatched together, so that messages to a stub share a frame.
    """

    waits_for_answers = False
    """Whether a batch can become larger by the answers to the one before it, so that it should leave after these."""

    def __init__(self) -> None:
        self._turn = loop_turn_of(asyncio.get_running_loop())
        self._is_scheduled = False  # :meth:`dispatch` is about to be called, and resets it

    @abstractmethod
    def __len__(self) -> int:
        """Number of waiting requests."""

    @abstractmethod
    def enqueue(self, pending: PendingRequest) -> None:
        """Accept a request; it is dispatched in one of the loop's next turns, never from inside this call.

        Raises:
            InferenceError: the request is refused.
        """

    @abstractmethod
    def requeue(self, waiting: Iterable[PendingRequest]) -> None:
        """Return requests to their places in the queue: an instance had received them, and has not started them."""

    @abstractmethod
    def reschedule(self, pending: PendingRequest) -> None:
        """Accept an executed request again, behind the waiting ones: the model asked for another execution."""

    @abstractmethod
    def remove(self, pending: PendingRequest) -> Sequence[PendingRequest]:
        """Remove a waiting request; returns it, and others that were removed because they cannot run without it."""

    @abstractmethod
    def take_all(self) -> list[PendingRequest]:
        """Empty the queue, so that the caller can answer requests that cannot be served."""

    @abstractmethod
    def dispatch(self) -> None:
        """Dispatch as many requests as instances can accept now; called whenever an instance may have become free.

        More than one call of a loop turn does no harm.
        """

    def on_lost(self, instance: object, error: InferenceError) -> None:  # noqa: B027  any other instance will do
        """An instance's process has died, and the model's state in it is lost; ``error`` gives the reason.

        Requests it had started are already answered, and those it had not started are back in the queue.
        """

    def change_instances(self) -> None:  # noqa: B027  every dispatch looks at the list
        """The list of instances that the scheduler was made with has other members now."""

    def keeps(self, instance: object) -> bool:
        """True while requests that are still to come can run only on this instance, which may have left that list."""
        return False

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Close the scheduler; the queue is empty, and no more requests will be enqueued."""

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turn.soon(self.dispatch)
