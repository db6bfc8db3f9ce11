"""One call of a model's ``execute``, from being sent to its last response, and who is told of its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.instance.lent_inputs import LentInputs, is_lent
from pybackend.instance.resources import ResourceGate
from pybackend.ipc.arena import TensorArena
from pybackend_wire.errors import RemoteProtocolError


class ExecutionOwner(Protocol):
    """Has requests executed, and is told of the outcome."""

    def on_executed(self, returned: Sequence[Returned], now_ns: int) -> None:
        """``execute`` has returned, perhaps more than once; the host has the outputs since ``now_ns``."""

    def on_streamed(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        """A sender has sent a response."""

    def on_rescheduled(self, again: list[PendingRequest]) -> None:
        """The model wants to see these once more; told before :meth:`on_executed`."""

    def on_handed_back(self, waiting: list[PendingRequest]) -> None:
        """These have not begun and can go elsewhere."""

    def on_lost(
        self, instance: object, error: InferenceError, begun: list[PendingRequest], waiting: list[PendingRequest]
    ) -> None:
        """The stub of an instance died: ``begun`` fail with this error, ``waiting`` have not begun."""

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """An execution could not be sent."""


ExecutionTimes = tuple[int, int, int]
"""When the execution, and ``execute`` in it, began and when that ended, by ``time.monotonic_ns()``."""

NOT_OVER: ExecutionTimes = (0, 0, 0)


class Execution(Struct, eq=False):
    """One call of ``execute``."""

    number: int  # counts from 1 in each stub's life
    pending: list[PendingRequest]
    sent_ns: int
    owner: ExecutionOwner
    gate: ResourceGate | None  # the gate it has passed, if any; it learns when the execution is over
    frame: int
    ahead: bool  # it was sent to wait behind another execution
    unanswered: int  # how many of its requests still wait for their final response
    responded: bool = False
    # places of the requests that the model wants to execute once more; told before ``execute`` returns
    rescheduled: Sequence[int] = ()
    times: ExecutionTimes = NOT_OVER
    # the responses of the steps that have followed it in its process, and when itself was over
    followed: Sequence[InferenceResponse] = ()
    left_ns: int = 0

    def reschedule(self, places: Sequence[int]) -> None:
        """Note which requests must be executed once more.

        Raises RemoteProtocolError if they are not all here, or one is named twice.
        """
        if len(set(places)) < len(places) or max(places, default=0) >= len(self.pending):
            raise RemoteProtocolError("requests to be executed once more that the execution does not have")
        self.rescheduled = places

    def withdraw_rescheduled(self, responses: Sequence[object], lent: LentInputs) -> list[PendingRequest]:
        """The requests that must be executed once more; they are no part of this execution any longer.

        Raises RemoteProtocolError if one of them is answered, or cannot be executed any more.
        """
        again = [self.pending[place] for place in self.rescheduled]
        if any(pending.answered for pending in again) or any(responses[place] for place in self.rescheduled):
            raise RemoteProtocolError("a request to be executed once more that is answered")
        if not all(is_lent(lent, pending.request) for pending in again):
            raise RemoteProtocolError("a request to be executed once more whose input the stub had given back")
        self.unanswered -= len(again)
        return again


def unanswered(executions: Iterable[Execution]) -> Iterator[PendingRequest]:
    """The requests of executions that wait for their final responses."""
    for execution in executions:
        for pending in execution.pending:
            if not pending.answered and pending.execution == execution.number:
                yield pending


Returned = tuple[Execution, Sequence[InferenceResponse | None]]
"""An execution that is over, and the responses to its requests; None for those that are answered by a sender."""


class InstanceOwner(ExecutionOwner, Protocol):
    """The model that an instance belongs to. It learns of every death of a stub, even if no request is lost.

    Attributes:
        arena: the model's input memory.
        send_next: called when executions have returned: before they are answered, others may begin. None while nothing
            may.
    """

    arena: TensorArena
    send_next: Callable[[], None] | None

    def on_local_call(self, times: ExecutionTimes, done_ns: int, batch_size: int, *, failed: bool) -> None:
        """Another model has run this one in the process that they share."""

    def has_idle_instance(self) -> bool:
        """Whether an instance has nothing to do."""

    def on_available(self) -> None:
        """An instance can take work again, or has given up for now."""
