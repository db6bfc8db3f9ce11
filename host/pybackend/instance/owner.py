"""The model that an instance belongs to, as the instance sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.instance.execution import Execution
from pybackend.ipc.arena import ArenaLease


class LostInstance(Protocol):
    """An instance whose stub has died."""

    name: str
    death_cause: str


class InstanceOwner(Protocol):
    """The model that an instance belongs to."""

    def on_executed(self, execution: Execution, responses: Sequence[InferenceResponse | None]) -> None:
        """``execute`` has returned; ``responses`` match its requests, None for those that are answered by a sender."""

    def on_response(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        """A sender has sent a response."""

    def on_rescheduled(self, again: list[PendingRequest]) -> None:
        """The model wants to see these once more; told before :meth:`on_executed`."""

    def on_handed_back(self, waiting: list[PendingRequest]) -> None:
        """These have not begun and can go elsewhere."""

    def lease(self, nbytes: int) -> ArenaLease:
        """Input memory of the model.

        Raises:
            InferenceError: UNAVAILABLE when its limit is reached.
        """

    def on_lost(self, instance: LostInstance, begun: list[PendingRequest], waiting: list[PendingRequest]) -> None:
        """The stub died: ``begun`` are its failures, ``waiting`` it had not looked at."""

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """An execution could not be sent."""

    def on_available(self) -> None:
        """An instance can take work again, or has given up for now."""
