"""The model that an instance belongs to, as the instance sees it."""

from __future__ import annotations

from typing import Protocol

from pybackend.instance.execution import ExecutionOwner
from pybackend.ipc.arena import ArenaLease


class InstanceOwner(ExecutionOwner, Protocol):
    """The model that an instance belongs to. It learns of every death of a stub, even if no request is lost."""

    def lease(self, nbytes: int) -> ArenaLease:
        """Input memory of the model.

        Raises:
            InferenceError: UNAVAILABLE when its limit is reached.
        """

    def has_idle_instance(self) -> bool:
        """Whether an instance has nothing to do."""

    def on_available(self) -> None:
        """An instance can take work again, or has given up for now."""
