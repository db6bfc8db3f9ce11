"""Clients of all ports that send tensors slowly: when a model's memory is short, they are disconnected."""

from __future__ import annotations

from typing import Protocol

from pybackend.engine.admission import Admission
from pybackend.frontend.pace import Pace


class TensorSender(Protocol):
    """A connection whose client sends tensors into the memory of models."""

    @property
    def pace(self) -> Pace:
        """The client's transfer rate."""

    def holds_memory_for(self, other: Admission | None) -> bool:
        """True while an arriving request holds leased memory that the other request could use."""

    def make_room(self) -> None:
        """Disconnect the client and release the memory of its request."""


class SlowSenders:
    """The connections that may hold memory of models while their requests arrive."""

    def __init__(self) -> None:
        self._senders: set[TensorSender] = set()

    def add(self, sender: TensorSender) -> None:
        """A large request begins to arrive on this connection."""
        self._senders.add(sender)

    def discard(self, sender: TensorSender) -> None:
        """The connection is closed."""
        self._senders.discard(sender)

    def drop_slowest(self, taker: TensorSender, admission: Admission | None) -> bool:
        """Disconnect the slowest of the slow clients whose requests hold memory that another request needs.

        Args:
            taker: the other request's connection.
            admission: its admission to its model.

        Returns:
            False if there is no such client.
        """
        others = self._senders - {taker}
        slow = [each for each in others if each.pace.is_slow and each.holds_memory_for(admission)]
        if not slow:
            return False
        slowest = min(slow, key=lambda each: each.pace.rate_bytes_per_s)
        self._senders.discard(slowest)
        slowest.make_room()
        return True
