"""The gate that an execution passes on its way to the stub."""

from __future__ import annotations

from typing import Protocol


class ExecutionGate(Protocol):
    """Decides when an instance may execute; the instance says when an execution begins and when it is over."""

    @property
    def is_open(self) -> bool:
        """True if an execution may begin now. For an instance that has to wait, asking is how it gets a turn later."""

    @property
    def lets_prefetch(self) -> bool:
        """True if executions may wait in the stub behind the one that runs."""

    def begin(self) -> None:
        """An execution begins."""

    def end(self) -> None:
        """It is over."""

    def close(self) -> None:
        """The instance executes nothing any more."""


class OpenGate:
    """Lets every execution pass at once."""

    is_open = True
    lets_prefetch = True

    def begin(self) -> None:
        """Nothing to count."""

    def end(self) -> None:
        """Nothing to count."""

    def close(self) -> None:
        """Nothing to give back."""


OPEN = OpenGate()
