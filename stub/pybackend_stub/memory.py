"""Shared tensor memory on the stub's side: input segments that it reads, output segments that it allocates in."""

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional

from pybackend_wire.allocation import BlockMap
from pybackend_wire.messages import BlockPlace, SegmentRole


class OutputBlock(NamedTuple):
    """A block of output memory, ready for writing."""

    segment: int
    offset: int
    view: memoryview


class _LentBlock:
    """A block of output memory that an array of the model's views."""

    __slots__ = ("block", "nbytes", "reference", "sent")

    def __init__(self, block: BlockPlace, nbytes: int, reference: "weakref.ref[Any]") -> None:
        self.block = block
        self.nbytes = nbytes
        self.reference = reference
        self.sent = False  # the host has it, too


class _Segment:
    """One mapped segment."""

    def __init__(self, role: int, mapping: mmap.mmap) -> None:
        self.role = role
        self.mapping = mapping
        self.blocks = BlockMap(len(mapping)) if role == SegmentRole.OUTPUT else None


class StubMemory:
    """The segments that the host attached.

    An input block is released when the last array that views it is garbage-collected: ``on_release`` is called then, in
    the collector's thread, and :meth:`take_released` returns the blocks released so far. Any thread may allocate output
    memory.
    """

    def __init__(self, on_release: "Callable[[], None]") -> None:
        self._segments: Dict[int, _Segment] = {}
        self._lock = threading.Lock()
        self._on_release = on_release
        self.released: Deque[BlockPlace] = deque()
        """Input blocks for :meth:`take_released`."""
        self._watched: Dict[int, weakref.ref[Any]] = {}
        self.progress: Any = [0]
        """The execution that began last. The host can read it even after a crash."""
        self._lent: Dict[int, _LentBlock] = {}
        self._lent_blocks: Dict[BlockPlace, _LentBlock] = {}
        self._dropped: Deque[int] = deque()

    def attach(self, segment: int, descriptor: int, size_bytes: int, role: int) -> None:
        try:
            mapping = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        self.add(segment, mapping, role)
        if role == SegmentRole.PROGRESS:
            self.progress = memoryview(mapping).cast("Q")

    def add(self, segment: int, mapping: mmap.mmap, role: int) -> None:
        with self._lock:
            self._segments[segment] = _Segment(role, mapping)

    def detach(self, segment: int) -> bool:
        """Forget a segment unless its output blocks are in use; its pages go when the last view of them does."""
        with self._lock:
            self._reclaim()
            found = self._segments.get(segment)
            if found is None or (found.blocks is not None and len(found.blocks)):
                return False
            del self._segments[segment]
            return True

    def detach_all(self) -> None:
        """Forget every segment, at the end of an instance whose process lives on."""
        with self._lock:
            self._segments.clear()
            self.progress = [0]

    def disown(self) -> None:
        """In a fork, stop reporting releases: the host does not wait for its copies of input arrays."""
        self._on_release = lambda: None

    def input_block(self, segment: int, offset: int, nbytes: int) -> Any:
        """Return a writable view of an input block; the block is released when nothing refers to the view any more."""
        block = (ctypes.c_char * nbytes).from_buffer(self._segments[segment].mapping, offset)
        key = id(block)

        def release(_reference: Any) -> None:
            self._watched.pop(key, None)
            self.released.append(BlockPlace(segment, offset))
            self._on_release()

        self._watched[key] = weakref.ref(block, release)
        return block

    def take_released(self) -> "List[BlockPlace]":
        """Return the input blocks released since the last call."""
        taken: List[BlockPlace] = []
        while self.released:
            try:
                taken.append(self.released.popleft())
            except IndexError:  # another thread, or the collector in this one, took it
                break
        return taken

    def allocate_output(self, nbytes: int) -> "Optional[OutputBlock]":
        """Allocate a block of output memory; None if the attached segments have no room for it."""
        with self._lock:
            self._reclaim()
            for number, segment in self._segments.items():
                if segment.blocks is not None:
                    offset = segment.blocks.allocate(nbytes)
                    if offset is not None:
                        return OutputBlock(number, offset, memoryview(segment.mapping)[offset : offset + nbytes])
        return None

    def free_output(self, segment: int, offset: int) -> None:
        """Free a block that the host has read or dropped; one that an array views stays until the array goes."""
        with self._lock:
            self._reclaim()
            lent = self._lent_blocks.get(BlockPlace(segment, offset))
            if lent is None:
                self._release(segment, offset)
            else:
                lent.sent = False

    def _release(self, segment: int, offset: int) -> None:
        found = self._segments.get(segment)
        if found is not None and found.blocks is not None and offset in found.blocks:
            found.blocks.release(offset)

    # Output memory that models write to

    def lend(self, block: OutputBlock) -> memoryview:
        """Let the model write to a block of output memory.

        It is free again when nothing refers to the view any more.
        """
        nbytes = len(block.view)
        buffer = (ctypes.c_char * nbytes).from_buffer(block.view)
        address = ctypes.addressof(buffer)
        # Called by the garbage collector, in any thread: nothing here may wait for the lock.
        reference = weakref.ref(buffer, lambda _: self._dropped.append(address))
        lent = _LentBlock(BlockPlace(block.segment, block.offset), nbytes, reference)
        with self._lock:
            self._lent[address] = self._lent_blocks[lent.block] = lent
        return memoryview(buffer).cast("B")

    def give(self, address: int, nbytes: int) -> "Optional[BlockPlace]":
        """Give the host the block that begins at this address; None if it is not lent, or has been given already."""
        with self._lock:
            lent = self._lent.get(address)
            if lent is None or lent.sent or nbytes > lent.nbytes:
                return None
            lent.sent = True
            return lent.block

    @property
    def lends(self) -> bool:
        """Whether any array may view output memory."""
        return bool(self._lent)

    def _reclaim(self) -> None:
        """Free what dropped arrays viewed, unless the host still has it."""
        while self._dropped:
            lent = self._lent.pop(self._dropped.popleft())
            del self._lent_blocks[lent.block]
            if not lent.sent:
                self._release(*lent.block)
