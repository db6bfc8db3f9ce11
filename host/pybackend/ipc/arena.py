"""Input memory of one model: leases of blocks in segments that all its instances map.

Memory grows in steps, is reused warm, and goes back after it lay unused for a while.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from pybackend.errors import ErrorCode, InferenceError
from pybackend.ipc.segment import Segment
from pybackend_wire.allocation import BlockMap, aligned

_MIB = 1024 * 1024
_PAGE_BYTES = mmap.PAGESIZE
FIRST_SEGMENT_BYTES = _MIB
LARGEST_STEP_BYTES = 64 * _MIB
"""Growth doubles up to this step; a larger tensor gets a segment of its own size."""

IDLE_NS = 10_000_000_000
"""How long a segment may lie unused before it is given back: long enough to bridge pauses between bursts."""


class ArenaLease:
    """A block of input memory; see :class:`pybackend.inference.tensor.Lease`.

    It has one owner, unless it was shared: then it goes back with the last of them.
    """

    __slots__ = ("_arena", "_owners", "_private", "memory", "nbytes", "offset", "segment")

    def __init__(self, arena: TensorArena, memory: Segment, offset: int, nbytes: int) -> None:
        self._arena: TensorArena | None = arena
        self._owners = 1
        self._private: bytearray | None = None if memory.sealed else bytearray(nbytes)
        self.memory = memory
        self.segment = memory.number
        self.offset = offset
        self.nbytes = nbytes

    @property
    def view(self) -> memoryview:
        """Where the tensor's bytes go."""
        if self._private is not None:
            return memoryview(self._private)
        return self.memory.view(self.offset, self.nbytes)

    def publish(self) -> None:
        """Make what was written visible to stubs; only unsealed segments, which cannot be mapped safely, need it."""
        if self._private is not None:
            self.memory.write(self.offset, self._private)

    def share(self) -> None:
        """Have one owner more, who is to release it too."""
        self._owners += 1

    def release(self) -> None:
        """Give the block back. Every further call does nothing."""
        if self._owners > 1:
            self._owners -= 1
            return
        arena, self._arena = self._arena, None
        if arena is not None:
            self._private = None
            arena.give_back(self.memory, self.offset)


class TensorArena:
    """Hands out leases.

    Args:
        limit_bytes: most that all segments together may hold; beyond, :meth:`lease` fails with UNAVAILABLE.
        owner: the model, for messages.
    """

    def __init__(self, limit_bytes: int, owner: str) -> None:
        self._limit_bytes = limit_bytes
        self._owner = owner
        self._segments: dict[int, tuple[Segment, BlockMap]] = {}
        self._idle_since_ns: dict[int, int] = {}
        self.total_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all blocks that are leased."""
        return sum(blocks.used_bytes for _, blocks in self._segments.values())

    def lease(self, nbytes: int) -> ArenaLease:
        """A block of at least ``nbytes``.

        Raises:
            InferenceError: UNAVAILABLE when the limit is reached.
        """
        for segment, blocks in self._segments.values():
            offset = blocks.allocate(nbytes)
            if offset is not None:
                self._idle_since_ns.pop(segment.number, None)
                return ArenaLease(self, segment, offset, nbytes)
        segment = self._grow(nbytes)
        offset = self._segments[segment.number][1].allocate(nbytes)
        assert offset is not None
        return ArenaLease(self, segment, offset, nbytes)

    def owns(self, lease: ArenaLease) -> bool:
        """True if a lease is from here."""
        return lease.segment in self._segments

    def give_back(self, segment: Segment, offset: int) -> None:
        """Free a block; called by its lease."""
        entry = self._segments.get(segment.number)
        if entry is not None:
            entry[1].release(offset)

    def trim(self, now_ns: int, on_drop: Callable[[int], None]) -> None:
        """Give back segments that nobody used for :data:`IDLE_NS`; ``on_drop`` is told each one's number.

        Called now and then; a segment is idle from the first call that finds it empty.
        """
        for number, (segment, blocks) in list(self._segments.items()):
            if len(blocks):
                continue
            since_ns = self._idle_since_ns.setdefault(number, now_ns)
            if now_ns - since_ns >= IDLE_NS:
                del self._segments[number], self._idle_since_ns[number]
                self.total_bytes -= segment.size_bytes
                on_drop(number)
                segment.close()

    def close(self) -> None:
        """Close all segments; leases that are still out become harmless."""
        for segment, _ in self._segments.values():
            segment.close()
        self._segments.clear()
        self.total_bytes = 0

    def _grow(self, nbytes: int) -> Segment:
        size = growth_bytes(nbytes, self.total_bytes, self._limit_bytes)
        if self.total_bytes + size > self._limit_bytes:
            raise InferenceError(
                f"no input memory left for model '{self._owner}': {self.used_bytes} bytes are in flight and "
                f"{nbytes} more do not fit into its limit of {self._limit_bytes} bytes. Send fewer requests at once, or "
                "raise --model-memory-limit",
                ErrorCode.UNAVAILABLE,
            )
        segment = Segment(size)
        self._segments[segment.number] = (segment, BlockMap(size))
        self.total_bytes += size
        return segment


def growth_bytes(needed_bytes: int, present_bytes: int, limit_bytes: int) -> int:
    """Size of the next segment: as much again as is there, within bounds; what is needed, where the limit is near."""
    step = min(max(present_bytes, FIRST_SEGMENT_BYTES), LARGEST_STEP_BYTES)
    whole = -(-aligned(needed_bytes) // FIRST_SEGMENT_BYTES) * FIRST_SEGMENT_BYTES
    size = max(step, whole)
    if present_bytes + size > limit_bytes:
        size = -(-aligned(needed_bytes) // _PAGE_BYTES) * _PAGE_BYTES
    return size
