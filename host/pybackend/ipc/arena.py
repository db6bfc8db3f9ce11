"""Input memory of one model: leases of blocks in segments that all its instances map.

Memory grows in steps, is reused warm, and is released after it has been unused for a while.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from typing import ClassVar
from weakref import WeakSet

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.tensor import Lease
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
"""Addresses of an arena's segments. Announced bytes take no memory before they arrive, but addresses, of which a
process has 2**47 bytes."""

IDLE_NS = 10_000_000_000
"""How long a segment may be unused before it is closed: long enough to bridge pauses between bursts."""


class TensorBudget:
    """The memory that the tensors of all models may take together: each of them has a limit, and there may be many."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.is_short = False  # the last one to want more did not get it
        self._arenas: WeakSet[TensorArena] = WeakSet()

    def add(self, arena: TensorArena) -> None:
        """Have an arena give back what it does not use when others need it."""
        self._arenas.add(arena)

    def make_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may be taken, if need be after memory was given back that is only kept warm."""
        if self.used_bytes + nbytes > self.limit_bytes:
            for arena in self._arenas:
                arena.give_back_unused()
        self.is_short = self.used_bytes + nbytes > self.limit_bytes
        return not self.is_short


class ArenaLease:
    """A block of input memory; see :class:`pybackend.inference.tensor.Lease`.

    It has one owner, unless it is shared: then the last owner's release frees it.

    Args:
        give_back: frees it.
        fill: counts bytes of it, between two offsets, as written; raises InferenceError UNAVAILABLE if there is no
            memory for them. None if all of it counts already.
    """

    is_of_model: ClassVar[bool] = True

    __slots__ = (
        "_counted_bytes",
        "_fill",
        "_give_back",
        "_owners",
        "_private",
        "arrived_bytes",
        "memory",
        "nbytes",
        "offset",
        "segment",
    )

    def __init__(
        self,
        memory: Segment,
        offset: int,
        nbytes: int,
        give_back: Callable[[ArenaLease], None],
        fill: Callable[[ArenaLease, int, int], None] | None = None,
    ) -> None:
        self._give_back: Callable[[ArenaLease], None] | None = give_back
        self._fill = fill
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

    def arrived(self, nbytes: int) -> int:
        """Count ``nbytes`` bytes as arrived: from now on they take memory."""
        if self._give_back is not None:
            self.arrived_bytes = nbytes  # first, so that bytes already written do not count as unused
            if self._fill is not None:
                self._fill(self, self._counted_bytes, nbytes)
            self._counted_bytes = nbytes
        return 0

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
        give_back, self._give_back, self._fill = self._give_back, None, None
        if give_back is not None:
            self._private = None
            give_back(self)


class _Chunk:
    """A segment of an arena, and the parts of it that take memory: those that were written to."""

    __slots__ = ("_budget", "_filled", "blocks", "filled_bytes", "memory")

    def __init__(self, memory: Segment, budget: TensorBudget) -> None:
        self.memory = memory
        self._budget = budget
        self.blocks = BlockMap(memory.size_bytes)
        self.filled_bytes = 0  # the memory it takes, in whole parts
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
            self._count(self.part_bytes(part))

    def _count(self, nbytes: int) -> None:
        self.filled_bytes += nbytes
        self._budget.used_bytes += nbytes

    def close(self) -> None:
        self._count(-self.filled_bytes)
        self.memory.close()

    def part_bytes(self, part: int) -> int:
        """Return the size of a part; the last one may be smaller."""
        return min(PART_BYTES, self.memory.size_bytes - part * PART_BYTES)

    def empty(self, begin: int, end: int) -> None:
        """Release the memory of the parts entirely within these bytes, which must be unused."""
        first, behind = -(-begin // PART_BYTES), end // PART_BYTES
        if first < behind and any(self._filled[first:behind]):
            self.memory.empty(first * PART_BYTES, (behind - first) * PART_BYTES)
            self._count(-sum(self._filled[first:behind]) * PART_BYTES)
            self._filled[first:behind] = bytes(behind - first)

    def forget(self, uncounted: range) -> None:
        """Give back the memory of bytes that were written, and for which there was none."""
        for part in self.missing(uncounted.start, uncounted.stop) if uncounted else ():
            self.memory.empty(part * PART_BYTES, self.part_bytes(part))


class TensorArena:
    """Hands out leases.

    Args:
        limit_bytes: most memory for all segments together; beyond it :meth:`lease` fails with UNAVAILABLE.
        budget: of all arenas together.
    """

    def __init__(self, limit_bytes: int, owner: str, budget: TensorBudget | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._owner = owner
        self.budget = budget or TensorBudget(MOST_ADDRESSES_BYTES)
        self.budget.add(self)
        self._chunks: dict[int, _Chunk] = {}
        self._arriving: set[ArenaLease] = set()
        self._idle_since_ns: dict[int, int] = {}
        self._dropped: list[int] = []
        self._lent: dict[int, Segment] = {}
        self._lent_bytes = 0
        self.leased_bytes = 0  # sum of all leases so far, each of which is filled by a copy

    @property
    def used_bytes(self) -> int:
        return self._lent_bytes + sum(chunk.blocks.used_bytes for chunk in self._chunks.values())

    def lease(self, nbytes: int, *, arriving: bool = False) -> ArenaLease:
        """Lease a block.

        Args:
            arriving: whether the bytes arrive gradually and take memory as :meth:`ArenaLease.arrived` reports;
                otherwise they take memory at once.

        Raises:
            InferenceError: UNAVAILABLE if the limit is reached, INVALID_ARG if so many bytes never fit.
        """
        if nbytes > self._limit_bytes:
            raise self._too_large(nbytes)
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
        for chunk in self._chunks.values():
            offset = chunk.blocks.allocate(nbytes)
            if offset is not None:
                self._idle_since_ns.pop(chunk.memory.number, None)
                return ArenaLease(chunk.memory, offset, nbytes, self._free, self._fill)
        chunk = self._grow(nbytes)
        offset = chunk.blocks.allocate(nbytes)
        assert offset is not None
        return ArenaLease(chunk.memory, offset, nbytes, self._free, self._fill)

    def owns(self, lease: Lease) -> bool:
        return lease.segment in self._chunks or lease.segment in self._lent

    # Whole segments, in which others allocate blocks

    def lend(self, nbytes: int, present_bytes: int) -> Segment:
        """Lend a segment with room for so many bytes to somebody who has ``present_bytes``.

        All of it takes memory at once.

        Raises:
            InferenceError: UNAVAILABLE if the limit is reached, INVALID_ARG if so many bytes never fit.
        """
        if nbytes > self._limit_bytes:
            raise self._too_large(nbytes)
        size = growth_bytes(nbytes, present_bytes, MOST_ADDRESSES_BYTES)
        if not self._make_room(size):
            size = whole_pages(nbytes)
        if not self._make_room(size):
            raise self._full(nbytes, self.used_bytes)
        if not self.budget.make_room(size):
            raise self._all_full(nbytes)
        segment = self._lent_segment(size, nbytes)
        self._lent_bytes += segment.size_bytes
        self.budget.used_bytes += segment.size_bytes
        return segment

    @property
    def is_crowded(self) -> bool:
        """True if more than half of the memory is taken that this arena, or all of them, may have."""
        budget = self.budget
        return self.total_bytes > self._limit_bytes // 2 or budget.used_bytes > budget.limit_bytes // 2

    def _make_room(self, nbytes: int) -> bool:
        if self.total_bytes + nbytes > self._limit_bytes:
            self.give_back_unused()
        return self.total_bytes + nbytes <= self._limit_bytes

    def _lent_segment(self, wanted_bytes: int, needed_bytes: int) -> Segment:
        segment = new_segment(wanted_bytes, needed_bytes)
        if not segment.sealed:
            segment.close()
            raise InferenceError(
                "front ends in separate processes need memfd_create, which this system does not offer",
                ErrorCode.UNAVAILABLE,
            )
        self._lent[segment.number] = segment
        return segment

    def take_back(self, segment: Segment) -> None:
        """A lent segment is not used any more; it is closed here."""
        if self._lent.pop(segment.number, None) is not None:
            self._lent_bytes -= segment.size_bytes
            self.budget.used_bytes -= segment.size_bytes
            self._dropped.append(segment.number)
        segment.close()

    def _fill(self, lease: ArenaLease, begin: int, end: int) -> None:
        """Count these bytes of a lease as written; called by the lease."""
        chunk = self._chunks.get(lease.segment)
        if chunk is None:
            return
        if end == lease.nbytes:
            self._arriving.discard(lease)
        begin, end = lease.offset + begin, lease.offset + end
        if chunk.is_filled(begin, end):
            return
        missing = chunk.missing(begin, end)
        more = sum(map(chunk.part_bytes, missing))
        if self.total_bytes + more > self._limit_bytes:
            self.give_back_unused(chunk)
            if self.total_bytes + more > self._limit_bytes:
                others_bytes = self.used_bytes - chunk.blocks.block_bytes(lease.offset)
                raise self._full(lease.nbytes, others_bytes)
        if not self.budget.make_room(more):
            raise self._all_full(lease.nbytes)
        chunk.fill(missing)

    @property
    def total_bytes(self) -> int:
        return self._lent_bytes + sum([chunk.filled_bytes for chunk in self._chunks.values()])

    def _free(self, lease: ArenaLease) -> None:
        """Free a block; called by its lease."""
        self._arriving.discard(lease)
        chunk = self._chunks.get(lease.segment)
        if chunk is not None:
            chunk.forget(lease.uncounted)
            chunk.blocks.release(lease.offset)

    def give_back_unused(self, wanted: _Chunk | None = None) -> None:
        """Release memory that is kept warm, including the part of large tensors that has not arrived yet."""
        for chunk in list(self._chunks.values()):
            if not len(chunk.blocks) and chunk is not wanted:
                self._drop(chunk)
            elif chunk.memory.sealed:
                for offset, nbytes in chunk.blocks.free():
                    chunk.empty(offset, offset + nbytes)
        for lease in self._arriving:
            chunk = self._chunks[lease.segment]
            if chunk.memory.sealed:
                chunk.empty(lease.offset + lease.arrived_bytes, lease.offset + lease.nbytes)

    def trim(self, now_ns: int, on_drop: Callable[[int], None]) -> None:
        """Close segments that have been unused for :data:`IDLE_NS`; ``on_drop`` gets the number of each closed one.

        Called now and then; a segment counts as idle from the first call that finds it empty.
        """
        for number, chunk in list(self._chunks.items()):
            if len(chunk.blocks):
                continue
            since_ns = self._idle_since_ns.setdefault(number, now_ns)
            if now_ns - since_ns >= IDLE_NS:
                self._drop(chunk)
        dropped, self._dropped = self._dropped, []
        for number in dropped:
            on_drop(number)

    def close(self) -> None:
        """Close all segments; outstanding leases become harmless. Lent segments no longer count."""
        for chunk in self._chunks.values():
            chunk.close()
        self._chunks.clear()
        self.budget.used_bytes -= self._lent_bytes
        self._lent_bytes = 0
        self._lent.clear()
        self._arriving.clear()

    def _drop(self, chunk: _Chunk) -> None:
        number = chunk.memory.number
        del self._chunks[number]
        self._idle_since_ns.pop(number, None)
        self._dropped.append(number)
        chunk.close()

    def _grow(self, nbytes: int) -> _Chunk:
        present = sum(chunk.memory.size_bytes for chunk in self._chunks.values())
        # Clients that announce tensors and send nothing share segments, and so descriptors, however many they are.
        size = growth_bytes(nbytes, present, MOST_ADDRESSES_BYTES)
        if present + size > MOST_ADDRESSES_BYTES:
            raise self._full(nbytes, self.used_bytes)
        segment = new_segment(size, nbytes)
        if not segment.sealed and present + size > self._limit_bytes:
            segment.close()
            segment = new_segment(growth_bytes(nbytes, present, self._limit_bytes), nbytes)
        # Unsealed memory is allocated up front.
        if not segment.sealed and not self.budget.make_room(segment.size_bytes):
            segment.close()
            raise self._all_full(nbytes)
        chunk = self._chunks[segment.number] = _Chunk(segment, self.budget)
        if not segment.sealed:
            chunk.fill(chunk.missing(0, segment.size_bytes))
            if self.total_bytes > self._limit_bytes:
                self.give_back_unused(chunk)
            if self.total_bytes > self._limit_bytes:
                self._drop(chunk)
                raise self._full(nbytes, self.used_bytes)
        return chunk

    def _all_full(self, nbytes: int) -> InferenceError:
        budget = self.budget
        return InferenceError(
            f"no memory left for tensors: those of all models take {budget.used_bytes} bytes, and {nbytes} more for an "
            f"input of model '{self._owner}' do not fit into the limit of {budget.limit_bytes} bytes. Send fewer requests "
            "at once, or raise --tensor-memory-limit",
            ErrorCode.UNAVAILABLE,
        )

    def _too_large(self, nbytes: int) -> InferenceError:
        return InferenceError(
            f"no input memory left for model '{self._owner}': this request is larger than the whole limit, its tensors take "
            f"{nbytes} bytes of {self._limit_bytes}. Send smaller ones, or raise --model-memory-limit",
            ErrorCode.INVALID_ARG,
        )

    def _full(self, nbytes: int, others_bytes: int) -> InferenceError:
        return InferenceError(
            f"no input memory left for model '{self._owner}': {others_bytes} bytes are in flight and "
            f"{nbytes} more do not fit into its limit of {self._limit_bytes} bytes. Send fewer requests at once, or "
            "raise --model-memory-limit",
            ErrorCode.UNAVAILABLE,
        )


def new_segment(wanted_bytes: int, needed_bytes: int) -> Segment:
    """Make a segment of the wanted size; if there is no memory for it, one of the size that is needed."""
    least_bytes = whole_pages(needed_bytes)
    try:
        return Segment(wanted_bytes)
    except InferenceError:
        if least_bytes >= wanted_bytes:
            raise
    return Segment(least_bytes)


def whole_pages(nbytes: int) -> int:
    """Return the size of the smallest segment that holds so many bytes."""
    return -(-aligned(nbytes) // _PAGE_BYTES) * _PAGE_BYTES


def growth_bytes(needed_bytes: int, present_bytes: int, limit_bytes: int) -> int:
    """Return the size of the next segment: as much as is present, within bounds; near the limit, the rest.

    It is always a share of the present memory. So even many small requests make few segments, each of which takes a
    descriptor: about 100 hold a terabyte.
    """
    step = max(min(present_bytes, LARGEST_STEP_BYTES), present_bytes // LEAST_GROWTH, FIRST_SEGMENT_BYTES)
    size = -(-max(step, aligned(needed_bytes)) // FIRST_SEGMENT_BYTES) * FIRST_SEGMENT_BYTES
    if present_bytes + size <= limit_bytes:
        return size
    return max(whole_pages(needed_bytes), (limit_bytes - present_bytes) // _PAGE_BYTES * _PAGE_BYTES)
