"""Input memory of one model: leases of blocks in segments that all its instances map.

Memory grows in steps, is reused warm, and is released after it has been unused for a while.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from typing import ClassVar

from pybackend.errors import ErrorCode, InferenceError
from pybackend.ipc.segment import Segment
from pybackend_wire.allocation import BlockMap, aligned

_MIB = 1024 * 1024
_PAGE_BYTES = mmap.PAGESIZE
FIRST_SEGMENT_BYTES = _MIB
LARGEST_STEP_BYTES = 64 * _MIB
"""Growth doubles up to this step; a larger tensor gets a segment of its size."""

LEAST_GROWTH = 8
"""Above eight times that step, a new segment is this fraction of the present memory."""
PART_BYTES = _MIB
"""Unit in which an arena counts the memory that is taken."""

MOST_ADDRESSES_BYTES = 1 << 44
"""Addresses of an arena's segments. Announced bytes take no memory before they arrive, but addresses, of which a process has 2**47 bytes."""

IDLE_NS = 10_000_000_000
"""How long a segment may be unused before it is closed: long enough to bridge pauses between bursts."""


class ArenaLease:
    """A block of input memory; see :class:`pybackend.inference.tensor.Lease`.

    It has one owner, unless it is shared: then the last owner's release frees it.
    """

    is_of_model: ClassVar[bool] = True

    __slots__ = (
        "_arena",
        "_counted_bytes",
        "_owners",
        "_private",
        "arrived_bytes",
        "memory",
        "nbytes",
        "offset",
        "segment",
    )

    def __init__(self, arena: TensorArena, memory: Segment, offset: int, nbytes: int) -> None:
        self._arena: TensorArena | None = arena
        self._owners = 1
        self._private: bytearray | None = None if memory.sealed else bytearray(nbytes)
        self.memory = memory
        self.segment = memory.number
        self.offset = offset
        self.nbytes = nbytes
        self.arrived_bytes = self._counted_bytes = 0

    @property
    def uncounted(self) -> range:
        """The bytes that have arrived, in the segment, and for which there was no memory."""
        return range(self.offset + self._counted_bytes, self.offset + self.arrived_bytes)

    @property
    def view(self) -> memoryview:
        """The memory for the tensor's bytes."""
        if self._private is not None:
            return memoryview(self._private)
        return self.memory.view(self.offset, self.nbytes)

    def arrived(self, nbytes: int) -> None:
        """Count ``nbytes`` bytes as arrived: from now on they take memory.

        Raises:
            InferenceError: UNAVAILABLE if there is no memory for them.
        """
        if self._arena is not None:
            self.arrived_bytes = nbytes  # first, so that bytes already written do not count as unused
            self._arena.fill(self, self._counted_bytes, nbytes)
            self._counted_bytes = nbytes

    def publish(self) -> None:
        """Make written bytes visible to stubs; only unsealed segments, which cannot be mapped safely, need it."""
        if self._private is not None:
            self.memory.write(self.offset, self._private)

    def share(self) -> None:
        """Add an owner, which must release the lease too."""
        self._owners += 1

    def release(self) -> None:
        """Give up the lease. Further calls have no effect."""
        if self._owners > 1:
            self._owners -= 1
            return
        arena, self._arena = self._arena, None
        if arena is not None:
            self._private = None
            arena.give_back(self)


class _Room:
    """A segment of an arena, and the parts of it that take memory: those that were written to.

    Attributes:
        memory: the segment.
        blocks: its leased bytes.
        filled_bytes: the memory it takes, in whole parts.
    """

    __slots__ = ("_filled", "blocks", "filled_bytes", "memory")

    def __init__(self, memory: Segment) -> None:
        self.memory = memory
        self.blocks = BlockMap(memory.size_bytes)
        self.filled_bytes = 0
        self._filled = bytearray(-(-memory.size_bytes // PART_BYTES))

    def is_filled(self, begin: int, end: int) -> bool:
        """Whether all of these bytes already take memory."""
        return self._filled.find(0, begin // PART_BYTES, -(-end // PART_BYTES)) < 0

    def missing(self, begin: int, end: int) -> list[int]:
        """Return the parts of these bytes that do not take memory yet."""
        parts = range(begin // PART_BYTES, -(-end // PART_BYTES))
        return [part for part in parts if not self._filled[part]]

    def fill(self, parts: Iterable[int]) -> None:
        """Count these parts as taking memory from now on."""
        for part in parts:
            self._filled[part] = True
            self.filled_bytes += self.part_bytes(part)

    def part_bytes(self, part: int) -> int:
        """Return the size of a part; the last one may be smaller."""
        return min(PART_BYTES, self.memory.size_bytes - part * PART_BYTES)

    def empty(self, begin: int, end: int) -> None:
        """Release the memory of the parts entirely within these bytes, which must be unused."""
        first, behind = -(-begin // PART_BYTES), end // PART_BYTES
        if first < behind and any(self._filled[first:behind]):
            self.memory.empty(first * PART_BYTES, (behind - first) * PART_BYTES)
            self.filled_bytes -= sum(self._filled[first:behind]) * PART_BYTES
            self._filled[first:behind] = bytes(behind - first)

    def forget(self, uncounted: range) -> None:
        """Give back the memory of bytes that were written, and for which there was none."""
        for part in self.missing(uncounted.start, uncounted.stop) if uncounted else ():
            self.memory.empty(part * PART_BYTES, self.part_bytes(part))


class TensorArena:
    """Hands out leases.

    Args:
        limit_bytes: most memory for all segments together; beyond it :meth:`lease` fails with UNAVAILABLE.
        owner: the model, for messages.

    Attributes:
        leased_bytes: sum of all leases so far, each of which is filled by a copy.
    """

    def __init__(self, limit_bytes: int, owner: str) -> None:
        self._limit_bytes = limit_bytes
        self._owner = owner
        self._rooms: dict[int, _Room] = {}
        self._arriving: set[ArenaLease] = set()
        self._idle_since_ns: dict[int, int] = {}
        self._dropped: list[int] = []
        self.leased_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all leased blocks."""
        return sum(room.blocks.used_bytes for room in self._rooms.values())

    def lease(self, nbytes: int, *, arriving: bool = False) -> ArenaLease:
        """Lease a block.

        Args:
            nbytes: minimum size.
            arriving: whether the bytes arrive gradually and take memory as :meth:`ArenaLease.arrived` reports;
                otherwise they take memory at once.

        Raises:
            InferenceError: UNAVAILABLE if the limit is reached.
        """
        if nbytes > self._limit_bytes:
            raise self._full(nbytes, self.used_bytes)
        lease = self._block(nbytes)
        try:
            if arriving:
                self._arriving.add(lease)
            else:
                lease.arrived(nbytes)
        except InferenceError:
            lease.release()
            raise
        self.leased_bytes += nbytes
        return lease

    def _block(self, nbytes: int) -> ArenaLease:
        for room in self._rooms.values():
            offset = room.blocks.allocate(nbytes)
            if offset is not None:
                self._idle_since_ns.pop(room.memory.number, None)
                return ArenaLease(self, room.memory, offset, nbytes)
        room = self._grow(nbytes)
        offset = room.blocks.allocate(nbytes)
        assert offset is not None
        return ArenaLease(self, room.memory, offset, nbytes)

    def owns(self, lease: ArenaLease) -> bool:
        """Whether this arena made a lease."""
        return lease.segment in self._rooms

    def fill(self, lease: ArenaLease, begin: int, end: int) -> None:
        """Count these bytes of a lease as written; called by the lease.

        Raises:
            InferenceError: UNAVAILABLE if the limit is reached even after unused memory is released.
        """
        room = self._rooms.get(lease.segment)
        if room is None:
            return
        if end == lease.nbytes:
            self._arriving.discard(lease)
        begin, end = lease.offset + begin, lease.offset + end
        if room.is_filled(begin, end):
            return
        missing = room.missing(begin, end)
        more = sum(map(room.part_bytes, missing))
        if self.total_bytes + more > self._limit_bytes:
            self._give_back_unused(room)
            if self.total_bytes + more > self._limit_bytes:
                others_bytes = self.used_bytes - room.blocks.block_bytes(lease.offset)
                raise self._full(lease.nbytes, others_bytes)
        room.fill(missing)

    @property
    def total_bytes(self) -> int:
        """The memory that all segments take."""
        return sum([room.filled_bytes for room in self._rooms.values()])

    def give_back(self, lease: ArenaLease) -> None:
        """Free a block; called by its lease."""
        self._arriving.discard(lease)
        room = self._rooms.get(lease.segment)
        if room is not None:
            room.forget(lease.uncounted)
            room.blocks.release(lease.offset)

    def _give_back_unused(self, wanted: _Room) -> None:
        """Release memory that is kept warm, including the part of large tensors that has not arrived yet."""
        for room in list(self._rooms.values()):
            if not len(room.blocks) and room is not wanted:
                self._drop(room)
            elif room.memory.sealed:
                for offset, nbytes in room.blocks.free():
                    room.empty(offset, offset + nbytes)
        for lease in self._arriving:
            room = self._rooms[lease.segment]
            if room.memory.sealed:
                room.empty(lease.offset + lease.arrived_bytes, lease.offset + lease.nbytes)

    def trim(self, now_ns: int, on_drop: Callable[[int], None]) -> None:
        """Close segments that have been unused for :data:`IDLE_NS`; ``on_drop`` gets the number of each closed one.

        Called now and then; a segment counts as idle from the first call that finds it empty.
        """
        for number, room in list(self._rooms.items()):
            if len(room.blocks):
                continue
            since_ns = self._idle_since_ns.setdefault(number, now_ns)
            if now_ns - since_ns >= IDLE_NS:
                self._drop(room)
        dropped, self._dropped = self._dropped, []
        for number in dropped:
            on_drop(number)

    def close(self) -> None:
        """Close all segments; outstanding leases become harmless."""
        for room in self._rooms.values():
            room.memory.close()
        self._rooms.clear()
        self._arriving.clear()

    def _drop(self, room: _Room) -> None:
        number = room.memory.number
        del self._rooms[number]
        self._idle_since_ns.pop(number, None)
        self._dropped.append(number)
        room.memory.close()

    def _grow(self, nbytes: int) -> _Room:
        present = sum(room.memory.size_bytes for room in self._rooms.values())
        # Clients that announce tensors and send nothing share segments, and so descriptors, however many they are.
        size = growth_bytes(nbytes, present, MOST_ADDRESSES_BYTES)
        if present + size > MOST_ADDRESSES_BYTES:
            raise self._full(nbytes, self.used_bytes)
        segment = Segment(size)
        if not segment.sealed and present + size > self._limit_bytes:
            segment.close()
            segment = Segment(growth_bytes(nbytes, present, self._limit_bytes))
        room = self._rooms[segment.number] = _Room(segment)
        if not segment.sealed:  # such memory is allocated up front
            room.fill(room.missing(0, segment.size_bytes))
            if self.total_bytes > self._limit_bytes:
                self._give_back_unused(room)
            if self.total_bytes > self._limit_bytes:
                self._drop(room)
                raise self._full(nbytes, self.used_bytes)
        return room

    def _full(self, nbytes: int, others_bytes: int) -> InferenceError:
        return InferenceError(
            f"no input memory left for model '{self._owner}': {others_bytes} bytes are in flight and "
            f"{nbytes} more do not fit into its limit of {self._limit_bytes} bytes. Send fewer requests at once, or "
            "raise --model-memory-limit",
            ErrorCode.UNAVAILABLE,
        )


def growth_bytes(needed_bytes: int, present_bytes: int, limit_bytes: int) -> int:
    """Return the size of the next segment: as much as is present, within bounds; near the limit, the rest.

    It is always a share of the present memory. So even many small requests make few segments, each of which takes a
    descriptor: about 100 hold a terabyte.
    """
    step = max(min(present_bytes, LARGEST_STEP_BYTES), present_bytes // LEAST_GROWTH, FIRST_SEGMENT_BYTES)
    size = -(-max(step, aligned(needed_bytes)) // FIRST_SEGMENT_BYTES) * FIRST_SEGMENT_BYTES
    if present_bytes + size <= limit_bytes:
        return size
    needed = -(-aligned(needed_bytes) // _PAGE_BYTES) * _PAGE_BYTES
    return max(needed, (limit_bytes - present_bytes) // _PAGE_BYTES * _PAGE_BYTES)
