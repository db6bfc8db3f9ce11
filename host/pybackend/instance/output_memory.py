"""Output memory of one stub: segments that the host makes, the stub allocates in, and the host reads from.

What a stub says about it is checked here: it may only name blocks within its own segments, each once at a time.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

from pybackend.errors import InferenceError
from pybackend.inference.region import IN_REGION, RegionOutputs
from pybackend.inference.tensor import Buffer, OutputTensor
from pybackend.instance.lent_inputs import is_place_of
from pybackend.instance.output_check import OutputWarnings
from pybackend.instance.settings import DisconnectSlowClients, no_clients
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import IDLE_NS, MOST_ADDRESSES_BYTES, TensorBudget, growth_bytes, new_segment, whole_pages
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend.loop_turn import loop_turn_of
from pybackend.recurring import Recurring
from pybackend_wire.dtypes import ITEMSIZE
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, Detach, FreeOutput, NoOutput
from pybackend_wire.messages import INLINE_BYTES, TAIL, SegmentRole


@dataclass
class _OutputSegment:
    memory: Segment
    held: dict[int, memoryview] = field(default_factory=dict)
    """The blocks that the host still reads, by their offsets."""
    held_bytes: int = 0
    used: bool = True
    """The stub has left something in it since :meth:`OutputMemory.trim` looked last."""
    idle_since_ns: int = 0


MOST_LAYOUTS = 1024
"""Most layouts of outputs that are remembered, and most results; a model whose shapes vary has many."""

LONGEST_REMEMBERED_OUTPUTS = 1024
"""Bytes of the outputs' names, datatypes, shapes and places in a result that is remembered."""

_InlineOutputs = tuple[list[tuple[str, str, Sequence[int], int, int]], int, int]
"""Outputs in the tail of a frame, each with the place of its bytes; how long the tail must be; how many bytes they
have."""

LONGEST_REMEMBERED_NAME = 1024
"""Characters of an output's name; stubs send them."""


class OutputMemory:
    """The segments of one stub's life.

    Args:
        limit_bytes: most that the segments may hold together; beyond, slow clients leave, or the stub is refused.
    """

    def __init__(
        self,
        channel: StubChannel,
        limit_bytes: int,
        disconnect_slow_clients: DisconnectSlowClients = no_clients,
        budget: TensorBudget | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = loop_turn_of(self._loop)
        self._channel = channel
        self._limit_bytes = limit_bytes
        self._make_room = disconnect_slow_clients
        self._budget = budget or TensorBudget(MOST_ADDRESSES_BYTES)
        self._segments: dict[int, _OutputSegment] = {}
        self._freed: list[tuple[int, int]] = []
        self._growing = False
        self._tail_left = 0
        self._layouts: Recurring[tuple[object, ...], None] = Recurring(MOST_LAYOUTS, LONGEST_REMEMBERED_NAME)
        """Name, datatype, size and shape of outputs that were right; strings have any size. The listener was told of
        them."""
        self._known: Recurring[bytes, _InlineOutputs] = Recurring(MOST_LAYOUTS, LONGEST_REMEMBERED_OUTPUTS)
        """Outputs in frames, by their bytes."""
        self.listener: OutputWarnings | None = None

    @property
    def total_bytes(self) -> int:
        return sum([output.memory.size_bytes for output in self._segments.values()])

    def begin_frame(self, tail_bytes: int) -> None:
        """Outputs taken from now on came with a frame whose tail has this size."""
        self._tail_left = tail_bytes

    def tensors_of(
        self, result: heard.RequestResult, tail: bytes, regions: RegionOutputs | None = None, *, is_own: bool = True
    ) -> tuple[list[OutputTensor], Callable[[], None] | None]:
        """The tensors of a result, and how to give their memory back (None if they lie in the frame).

        Args:
            regions: where the stub was told to write some of them.
            is_own: the listener is told of them; False for those of another model in the process.

        Raises:
            RemoteProtocolError: a place is not within what the stub may use, or contradicts its shape.
        """
        tensors: list[OutputTensor] = []
        encoded = bytes(result.outputs)  # type: ignore[arg-type]  # see stub_messages.places_in
        known = self._known.get(encoded)
        if known is not None:
            inline, end, nbytes = known
            left = self._tail_left - nbytes
            if end <= len(tail) and left >= 0:
                self._tail_left = left
                for name, datatype, shape, begin, end in inline:
                    tensors.append(OutputTensor(name, datatype, shape, tail[begin:end]))
                return tensors, None
        blocks: list[tuple[int, int]] | None = None
        layouts, copy_of = self._layouts, self._copy_of
        places = heard.places_in(encoded, self._channel.codec)
        for place in places:
            name, datatype, shape, nbytes = place.name, place.datatype, place.shape, place.nbytes
            layout = (name, datatype, nbytes if ITEMSIZE.get(datatype) else 0, *shape)
            if not is_own:
                _check_size(place)
            elif layout not in layouts:
                self._look_at(place, layout)
            if place.segment == TAIL:
                tensors.append(OutputTensor(name, datatype, shape, copy_of(name, tail, place.offset, nbytes)))
            elif regions and name in regions and is_place_of(regions[name], place):
                tensors.append(OutputTensor(name, datatype, shape, IN_REGION))
            else:
                tensors.append(OutputTensor(name, datatype, shape, self._hold(place)))
                if blocks is None:
                    blocks = []
                blocks.append((place.segment, place.offset))
        self._look_for_repeated(places)
        if blocks is None:
            if not regions and len(encoded) <= LONGEST_REMEMBERED_OUTPUTS:
                self._remember(encoded, places)
            return tensors, None
        held = blocks
        return tensors, lambda: self.let_go(held)

    def _remember(self, encoded: bytes, places: Sequence[heard.TensorPlace]) -> None:
        """Know these outputs of a frame by their bytes when they come again.

        In frames of many results, the same offsets recur.
        """
        if not self._known.comes_again(encoded):
            return
        inline = [
            (place.name, place.datatype, place.shape, place.offset, place.offset + place.nbytes) for place in places
        ]
        end = max([end for *_, end in inline], default=0)
        self._known.remember(encoded, (inline, end, sum([place.nbytes for place in places])), len(encoded))

    def _look_for_repeated(self, places: Sequence[heard.TensorPlace]) -> None:
        if len(places) > 1 and self.listener is not None:
            names = [place.name for place in places]
            if len(set(names)) < len(names):
                self.listener.on_repeated_output(names)

    def _look_at(self, place: heard.TensorPlace, layout: tuple[object, ...]) -> None:
        """Check an output with a layout that is not known."""
        _check_size(place)
        if len(place.name) > LONGEST_REMEMBERED_NAME:
            return
        self._layouts.remember(layout, None, len(place.name))
        if self.listener is not None:
            self.listener.on_new_output(place.name, place.datatype, place.shape)

    def read_tensor(self, place: heard.TensorPlace, tail: bytes) -> Buffer:
        """The bytes of one tensor; its block is the host's until :meth:`let_go`."""
        _check_size(place)
        if place.segment == TAIL:
            return self._copy_of(place.name, tail, place.offset, place.nbytes)
        return self._hold(place)

    def _copy_of(self, name: str, tail: bytes, offset: int, nbytes: int) -> bytes:
        data = tail[offset : offset + nbytes]
        self._tail_left = left = self._tail_left - nbytes
        if nbytes > INLINE_BYTES:  # what a stub's memory holds has a limit, and what its frames bring has none
            raise RemoteProtocolError(f"tensor '{name}' is too large for its frame")
        if len(data) != nbytes:
            raise RemoteProtocolError(f"tensor '{name}' reaches beyond its frame")
        if left < 0:  # else a few bytes of a frame would stand for any number of copies
            raise RemoteProtocolError(f"tensor '{name}' shares bytes of its frame with others")
        return data

    def _hold(self, place: heard.TensorPlace) -> memoryview:
        output = self._segments.get(place.segment)
        if output is None or place.offset + place.nbytes > output.memory.size_bytes or place.offset in output.held:
            raise RemoteProtocolError(f"tensor '{place.name}' lies in memory that the stub may not use")
        output.held_bytes += place.nbytes
        if output.held_bytes > output.memory.size_bytes:
            raise RemoteProtocolError(f"tensor '{place.name}' shares memory with others")
        output.used = True
        output.held[place.offset] = data = output.memory.read(place.offset, place.nbytes)
        return data

    def let_go(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Give blocks back, as (segment, offset)."""
        for segment, offset in blocks:
            output = self._segments.get(segment)
            if output is not None:
                block = output.held.pop(offset, None)
                if block is not None:
                    output.held_bytes -= block.nbytes
        if self._channel.is_open:
            if not self._freed:
                self._turn.soon(self._post_freed)
            self._freed.extend(blocks)

    def _post_freed(self) -> None:
        freed, self._freed = self._freed, []
        if freed and self._channel.is_open:
            self._channel.post(FreeOutput(freed))

    def grow(self, nbytes: int) -> None:
        """Answer a stub that waits for output memory."""
        if self._growing:
            raise RemoteProtocolError("the stub asks for more memory before it has seen the answer")
        self._growing = True
        present = self.total_bytes
        limit = self._limit_bytes
        size = growth_bytes(nbytes, present, limit)
        if not self._budget.make_room(size):
            size = whole_pages(nbytes)
        try:
            if present + size > limit:
                raise InferenceError(f"its limit is {limit} bytes (--model-memory-limit)")
            if not self._budget.make_room(size):
                raise InferenceError(
                    f"the limit of all models is {self._budget.limit_bytes} bytes (--tensor-memory-limit)"
                )
            segment = new_segment(size, nbytes)
        except InferenceError as error:
            refuse = partial(self._refuse, error.message)
            if not self._make_room(self._has, nbytes, refuse):
                refuse()
            return
        try:
            self._channel.post_attach(
                Attach(segment.number, segment.size_bytes, SegmentRole.OUTPUT), segment.descriptor
            )
        except OSError as error:
            segment.close()
            self._refuse(f"cannot hand over a segment: {error.strerror}")
            return
        self._segments[segment.number] = _OutputSegment(segment)
        self._budget.used_bytes += segment.size_bytes
        self._loop.call_soon(self._grown)

    def _has(self, data: Buffer) -> bool:
        if not isinstance(data, memoryview):
            return False
        return any(data.obj is block.obj for output in self._segments.values() for block in output.held.values())

    def _refuse(self, reason: str) -> None:
        """Add nothing: the stub must do with what is free by now."""
        self._post_freed()
        self._channel.post(NoOutput(reason))
        self._loop.call_soon(self._grown)

    def _grown(self) -> None:
        self._growing = False

    def trim(self, now_ns: int) -> None:
        """Ask for segments that were not used for :data:`~pybackend.ipc.arena.IDLE_NS`; called now and then.

        The stub keeps those it is writing to, and is asked again.
        """
        for number, output in self._segments.items():
            if output.used or output.held:
                output.used, output.idle_since_ns = False, now_ns
            elif now_ns - output.idle_since_ns >= IDLE_NS:
                output.idle_since_ns = now_ns
                self._channel.post(Detach(number))

    def detached(self, segment: int) -> None:
        output = self._segments.get(segment)
        if output is not None:
            if output.held:
                raise RemoteProtocolError("the stub dropped output memory that is still being read")
            del self._segments[segment]
            self._close(output)

    def close(self) -> None:
        """The stub is gone: what is still being read stays until it was, the rest goes now."""
        for output in self._segments.values():
            self._close(output)

    def _close(self, output: _OutputSegment) -> None:
        self._budget.used_bytes -= output.memory.size_bytes
        output.memory.close()


def _check_size(place: heard.TensorPlace) -> None:
    itemsize = ITEMSIZE.get(place.datatype)
    if itemsize is None or (itemsize and prod(place.shape) * itemsize != place.nbytes):
        raise RemoteProtocolError(f"tensor '{place.name}' of {place.nbytes} bytes is no {place.datatype}{place.shape}")
