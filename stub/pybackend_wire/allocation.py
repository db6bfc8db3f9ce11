"""Keeps track of the free bytes of a segment: plain bookkeeping for the side that allocates in it.

First fit by address, with neighbours merged on release: the lowest addresses are reused first, so pages that were
touched before stay in use (a fresh page costs 20 to 30 times a warm one).
"""

from bisect import bisect_left
from typing import Dict, List, Optional, Tuple

ALIGNMENT_BYTES = 64
"""Blocks begin at multiples of a cache line, which is also the widest alignment that numpy's kernels benefit from."""


def aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to whole cache lines, at least one."""
    return max(ALIGNMENT_BYTES, (nbytes + ALIGNMENT_BYTES - 1) & -ALIGNMENT_BYTES)


class BlockMap:
    """The free and the used blocks of one segment."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._free_offsets: List[int] = [0]
        self._free_sizes: List[int] = [size_bytes]
        self._used: Dict[int, int] = {}
        self.used_bytes = 0

    def __contains__(self, offset: int) -> bool:
        return offset in self._used

    def __len__(self) -> int:
        return len(self._used)

    def block_bytes(self, offset: int) -> int:
        """Size of the block in use at ``offset``, alignment included."""
        return self._used[offset]

    def free(self) -> "List[Tuple[int, int]]":
        """Offset and size of every free block."""
        return list(zip(self._free_offsets, self._free_sizes))

    def allocate(self, nbytes: int) -> "Optional[int]":
        """Allocate at least ``nbytes``; returns the block's offset, None if no free block is large enough."""
        size = aligned(nbytes)
        for index, free in enumerate(self._free_sizes):
            if free >= size:
                offset = self._free_offsets[index]
                if free == size:
                    del self._free_offsets[index], self._free_sizes[index]
                else:
                    self._free_offsets[index] = offset + size
                    self._free_sizes[index] = free - size
                self._used[offset] = size
                self.used_bytes += size
                return offset
        return None

    def release(self, offset: int) -> None:
        """Free the block that begins at ``offset``."""
        size = self._used.pop(offset)
        self.used_bytes -= size
        offsets, sizes = self._free_offsets, self._free_sizes
        index = bisect_left(offsets, offset)
        if index < len(offsets) and offset + size == offsets[index]:
            size += sizes[index]
            del offsets[index], sizes[index]
        if index > 0 and offsets[index - 1] + sizes[index - 1] == offset:
            sizes[index - 1] += size
        else:
            offsets.insert(index, offset)
            sizes.insert(index, size)
