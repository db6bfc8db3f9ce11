"""Input memory that a stub has been lent: blocks of its model's arena, until it gives them back."""

from __future__ import annotations

from collections import Counter

from pybackend.instance.lent_regions import LentRegions
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, Detach
from pybackend_wire.messages import SegmentRole


class LentInputs:
    """The blocks that one stub has, and the segments it has mapped for them.

    Args:
        channel: to the stub.

    Attributes:
        regions: the clients' regions that the stub has been given.
        unread_bytes: how much was lent by messages that the stub may not have read yet.
    """

    def __init__(self, channel: StubChannel) -> None:
        self.regions = LentRegions(channel)
        self.unread_bytes = 0
        self._channel = channel
        self._attached: set[int] = set()
        self._lent: dict[tuple[int, int], ArenaLease] = {}
        self._lent_again: Counter[tuple[int, int]] = Counter()
        """How often a block was lent that was lent already: to requests that are executed more than once."""

    def lend(self, lease: ArenaLease) -> None:
        """Hand an input block to the stub, which gives it back when the model lets go of it.

        Raises:
            OSError: this process has no descriptor left.
        """
        if lease.segment not in self._attached:
            attach = Attach(lease.segment, lease.memory.size_bytes, SegmentRole.INPUT)
            self._channel.post_attach(attach, lease.memory.descriptor)
            self._attached.add(lease.segment)
        lease.publish()
        place = lease.segment, lease.offset
        if place in self._lent:
            self._lent_again[place] += 1
        self._lent[place] = lease
        if self.unread_bytes and not self._channel.has_unread:
            self.unread_bytes = 0
        self.unread_bytes += lease.nbytes

    def take_back(self, lease: ArenaLease) -> bool:
        """Undo :meth:`lend` for a request that was not sent, or that a stub that is dead had not begun.

        False if the stub gave the block back before, which no honest one does with what it has not begun.
        """
        return self._returned((lease.segment, lease.offset)) is lease

    def has(self, lease: ArenaLease) -> bool:
        """True until the stub gives the block back."""
        return self._lent.get((lease.segment, lease.offset)) is lease

    def on_freed(self, freed: heard.FreeInput) -> None:
        """The model has let go of blocks.

        Raises:
            RemoteProtocolError: one of them was not lent.
        """
        for place in freed.blocks:
            lease = self._returned(place)
            if lease is None:
                raise RemoteProtocolError(f"input block {place} was not lent")
            lease.release()

    def _returned(self, place: tuple[int, int]) -> ArenaLease | None:
        """Take back the memory lent at a place, once; None if nothing was lent there."""
        if place not in self._lent_again:
            return self._lent.pop(place, None)
        self._lent_again[place] -= 1
        if not self._lent_again[place]:
            del self._lent_again[place]
        return self._lent[place]

    def detach(self, segment: int) -> None:
        """A segment goes back to the system."""
        if segment in self._attached:
            self._attached.discard(segment)
            if self._channel.is_open:
                self._channel.post(Detach(segment))

    def release_all(self) -> None:
        """The stub is gone: nothing is lent any more."""
        self.regions.close()
        for place, lease in self._lent.items():
            for _ in range(1 + self._lent_again[place]):
                lease.release()
        self._lent.clear()
