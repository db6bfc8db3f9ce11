"""Tensor memory in a front end's process: segments of the engine in which it writes inputs, and from which it reads outputs."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import ClassVar

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import Channel
from pybackend.inference.tensor import Buffer
from pybackend.ipc.arena import IDLE_NS
from pybackend.ipc.segment import map_shared
from pybackend_wire.allocation import BlockMap

LATE_BYTES = 1024 * 1024
"""A larger tensor that arrives gets a block once a part of it is there: announced bytes take no memory of a model."""

EARLY_PART = 8
"""That part is an eighth, which is copied then."""

RELEASE_S = 0.005
"""Longest time that the engine hears nothing of outputs that were sent: usually it hears of them with a request,
because a separate frame would wake two processes."""


class BlockLease:
    """A block for an input; see :class:`pybackend.inference.tensor.Lease`.

    Once it is sent, the engine gives it back.
    """

    is_of_model: ClassVar[bool] = True

    __slots__ = ("_chunk", "nbytes", "offset")

    def __init__(self, chunk: _Chunk | None, offset: int, nbytes: int) -> None:
        self._chunk = chunk
        self.offset = offset
        self.nbytes = nbytes

    @property
    def has_block(self) -> bool:
        """False before there is one, and once it was sent or released."""
        return self._chunk is not None

    @property
    def segment(self) -> int:
        assert self._chunk is not None
        return self._chunk.number

    @property
    def view(self) -> memoryview:
        """The memory for the tensor's bytes."""
        assert self._chunk is not None
        return self._chunk.view[self.offset : self.offset + self.nbytes]

    def arrived(self, nbytes: int) -> int:
        """All of a segment counts already."""
        return 0

    def send(self) -> tuple[int, int]:
        """The place of the block, which is the request's from now on."""
        place = self.segment, self.offset
        self._chunk = None
        return place

    def release(self) -> None:
        """Free the block. Further calls do nothing."""
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            chunk.release(self.offset)


class LateLease(BlockLease):
    """A block for an input that arrives: until a part of it is there, the bytes lie elsewhere, and :attr:`view` is as large as that part.

    ``allocate`` returns the block, or None if the version has ended: then the bytes stay elsewhere.
    """

    __slots__ = ("_allocate", "_elsewhere")

    def __init__(self, allocate: Callable[[], BlockLease | None], nbytes: int) -> None:
        super().__init__(None, 0, nbytes)
        self._allocate = allocate
        try:
            self._elsewhere: mmap.mmap | bytearray | None = mmap.mmap(-1, nbytes // EARLY_PART)
        except (OSError, OverflowError):
            raise InferenceError(f"there is no memory for a tensor of {nbytes} bytes", ErrorCode.UNAVAILABLE) from None

    @property
    def view(self) -> memoryview:
        return super().view if self._elsewhere is None else memoryview(self._elsewhere)

    def arrived(self, nbytes: int) -> int:
        first = self._elsewhere
        if first is None:
            return 0
        if nbytes < len(first) or len(first) == self.nbytes:
            return nbytes
        block = self._allocate()
        if block is None:
            self._elsewhere = bytearray(self.nbytes)
        else:
            self._elsewhere, self._chunk, self.offset = None, block._chunk, block.offset
        self.view[: len(first)] = first
        return 0 if self._elsewhere is None else nbytes

    def release(self) -> None:
        self._elsewhere = None
        super().release()


class _Chunk:
    """A segment for inputs."""

    def __init__(self, pool: InputPool, told: messages.InputSegment, view: memoryview) -> None:
        self.number = told.segment
        self.view = view
        self.blocks = BlockMap(told.size_bytes)
        self._is_kept = told.is_kept
        self.idle_since_ns = 0
        self._pool = pool

    def release(self, offset: int) -> None:
        self.blocks.release(offset)
        if (self._pool.is_wanted or not self._is_kept) and not len(self.blocks):
            self._pool.give_back(self.number)


class InputPool:
    """Segments that serve the same inputs."""

    def __init__(self, give_back: Callable[[int], None]) -> None:
        self.chunks: dict[int, _Chunk] = {}
        self.give_back = give_back
        self.is_wanted = False  # others need the memory: segments go back as soon as they are not used

    def allocate(self, nbytes: int) -> BlockLease | None:
        """A block; None if no segment has room for it."""
        for chunk in self.chunks.values():
            offset = chunk.blocks.allocate(nbytes)
            if offset is not None:
                chunk.idle_since_ns = 0
                return BlockLease(chunk, offset, nbytes)
        return None


class FrontEndMemory:
    """All segments that a front end has. ``wait_until`` does nothing else until the engine has answered."""

    def __init__(self, channel: Channel, wait_until: Callable[[Callable[[], bool]], None]) -> None:
        self.clients: ClientMemory | None = None  # the account of the front end's clients; None before there are any
        self._channel = channel
        self._wait_until = wait_until
        self._pools: dict[int, InputPool] = {}
        self._inputs: dict[int, InputPool] = {}
        self._outputs: dict[int, memoryview] = {}
        self._more: list[InputPool | InferenceError] = []
        self.is_short_of_all = False  # memory of any model can serve the one that got none last
        self._is_asking = False
        self._latest = 0  # the segment that was lent last
        self.released: list[int] = []  # responses whose outputs were sent, and of which the engine does not know it
        self._will_post = False

    # Inputs

    def more(self, handle: int, input_name: str, nbytes: int) -> InputPool:
        """Get a segment with room for an input. Raises InferenceError UNAVAILABLE if the engine has none."""
        self._more.clear()
        self._channel.post(messages.NeedMemory(handle, input_name, nbytes))
        self._is_asking = True
        try:
            self._wait_until(lambda: bool(self._more))
        finally:
            self._is_asking = False
        got = self._more.pop()
        if isinstance(got, InferenceError):
            raise got
        return got

    def on_memory(self, told: messages.InputSegment, descriptor: int) -> None:
        """The engine has lent a segment for inputs."""
        try:
            view = map_shared(descriptor, told.size_bytes)
        except OSError as error:
            self._channel.post(messages.Return(told.segment))
            self._more.append(InferenceError(f"cannot map a segment: {error.strerror}", ErrorCode.UNAVAILABLE))
            return
        finally:
            os.close(descriptor)
        pool = self._pools.setdefault(told.pool, InputPool(self._give_back))
        pool.chunks[told.segment] = _Chunk(pool, told, view)
        self._inputs[told.segment] = pool
        self._latest = told.segment
        self.is_short_of_all = False
        self._more.append(pool)

    def on_no_memory(self, told: messages.NoMemory) -> None:
        """The engine has none to lend."""
        self.is_short_of_all = told.is_of_all
        self._more.append(InferenceError(told.message, told.code))

    def on_freed(self, told: messages.Freed) -> None:
        """Models have let go of blocks."""
        for segment, offset in told.blocks:
            self._inputs[segment].chunks[segment].release(offset)

    def on_make_room(self, told: messages.MakeRoom) -> None:
        """Give back the unused segments of a pool, now and until :meth:`trim`.

        If there are none, a slow client must leave.
        """
        pools = [pool for number, pool in self._pools.items() if told.pool in {0, number}]
        fresh = self._latest if self._more else 0  # nobody has had it yet
        unused = []
        for pool in pools:
            pool.is_wanted = True
            unused += [number for number, chunk in pool.chunks.items() if not len(chunk.blocks) and number != fresh]
        for number in unused:
            self._give_back(number)
        # A request that waits for memory here asks its own clients, and must not be one of them.
        if not unused and not self._is_asking and self.clients is not None:
            self.clients.drop_sender(lambda admission: any(map(admission.can_serve, pools)))
        self._channel.post(messages.Room(told.number))
        self._channel.flush()

    def _give_back(self, number: int) -> None:
        del self._inputs.pop(number).chunks[number]
        self._channel.post(messages.Return(number))

    def trim(self, now_ns: int) -> None:
        """Give back segments that were not used for a while; called about once a second."""
        for number, pool in list(self._inputs.items()):
            pool.is_wanted = False
            chunk = pool.chunks[number]
            if len(chunk.blocks):
                continue
            chunk.idle_since_ns = chunk.idle_since_ns or now_ns
            if now_ns - chunk.idle_since_ns >= IDLE_NS:
                self._give_back(number)

    # Outputs

    def add_outputs(self, told: messages.Attached, descriptor: int) -> None:
        """Map a segment in which outputs lie, for reading."""
        try:
            self._outputs[told.segment] = map_shared(descriptor, told.size_bytes, writable=False)
        finally:
            os.close(descriptor)

    def drop_outputs(self, told: messages.DetachedOutput) -> None:
        """No more outputs lie there; the mapping goes with the last of those that do."""
        del self._outputs[told.segment]

    def output(self, place: messages.OutputSlice) -> memoryview:
        return self._outputs[place.segment][place.offset : place.offset + place.nbytes]

    def release(self, number: int) -> None:
        """The outputs of a response were sent. The engine hears it with the next request, or soon."""
        self.released.append(number)
        if not self._will_post:
            self._will_post = True
            self._channel.loop.call_later(RELEASE_S, self._post_late)

    def _post_late(self) -> None:
        self._will_post = False
        self.post_released()

    def post_released(self) -> None:
        """Tell the engine of responses whose outputs were sent."""
        released, self.released = self.released, []
        for start in range(0, len(released), messages.MOST_RELEASED):
            self._channel.post(messages.Release(released[start : start + messages.MOST_RELEASED]))

    def on_drop_readers(self, told: messages.DropReaders) -> None:
        """Memory of a model's process is short: disconnect slow clients whose responses lie there."""
        mappings = [self._outputs[number].obj for number in told.segments if number in self._outputs]

        def is_part(data: Buffer) -> bool:
            return isinstance(data, memoryview) and any(data.obj is mapping for mapping in mappings)

        def dropped() -> None:
            self.post_released()
            self._channel.post(messages.Dropped(told.number))

        if self.clients is None or not self.clients.drop_readers(is_part, told.nbytes, dropped):
            dropped()
