"""Input memory that a stub has been lent: blocks of its model's arena, until it gives them back."""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pybackend.inference.region import RegionInput, RegionOutput, RegionPart
from pybackend.inference.request import InferenceRequest
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.client_regions import Access, ClientRegion
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import VIEW, Attach, Detach, OutputPlace, RegionSource
from pybackend_wire.messages import TAIL, SegmentRole


class LentRegions:
    """The regions that one stub has."""

    def __init__(self, channel: StubChannel) -> None:
        self._channel = channel
        self._attached: dict[int, weakref.finalize[..., ClientRegion]] = {}

    def source(self, part: RegionInput) -> RegionSource:
        region = _region_of(part)
        block = VIEW if part.is_view else TAIL if part.block is None else part.block.segment
        return RegionSource(self._number(region, region.reading), part.offset, block)

    def places(
        self, names: Sequence[str], outputs: Mapping[str, RegionOutput]
    ) -> dict[str, OutputPlace | None] | Sequence[str]:
        """The requested outputs, for the stub: with their places if it writes any of them to regions."""
        if not any(part.by_stub for part in outputs.values()):
            return names
        return {name: self._place(outputs.get(name)) for name in names}

    def _place(self, part: RegionOutput | None) -> OutputPlace | None:
        if part is None or not part.by_stub:
            return None
        region = _region_of(part)
        return OutputPlace(self._number(region, region.writing), part.offset, part.nbytes)

    def _number(self, region: ClientRegion, access: Access) -> int:
        number = access.number
        if number not in self._attached:
            self._channel.post_attach(Attach(number, region.end, SegmentRole.REGION), access.descriptor)
            detaching = self._attached[number] = weakref.finalize(region, self._detach, number)
            detaching.atexit = False
        return number

    def _detach(self, number: int) -> None:
        """Nothing refers to a region any more, so no execution of this stub does."""
        del self._attached[number]
        if self._channel.is_open:
            self._channel.post(Detach(number))

    def close(self) -> None:
        for detaching in self._attached.values():
            detaching.detach()
        self._attached.clear()


def is_place_of(part: RegionOutput, place: heard.TensorPlace) -> bool:
    """True if a stub says that it has written an output where it was told to."""
    return (
        part.by_stub
        and place.segment == _region_of(part).writing.number
        and place.offset == part.offset
        and place.nbytes <= part.nbytes
    )


def _region_of(part: RegionPart) -> ClientRegion:
    return cast("ClientRegion", part.region)  # the only kind of region that a server has


class LentInputs:
    """The blocks that one stub has, and the segments it has mapped for them."""

    def __init__(self, channel: StubChannel) -> None:
        self.regions = LentRegions(channel)
        self.unread_bytes = 0  # how much was lent by messages that the stub may not have read yet
        self._channel = channel
        self._attached: set[int] = set()
        self._lent: dict[tuple[int, int], ArenaLease] = {}
        self._lent_again: Counter[tuple[int, int]] = Counter()
        """How often a block was lent that was lent already: to requests that are executed more than once."""

    def lend(self, lease: ArenaLease) -> None:
        """Hand an input block to the stub, which gives it back when the model lets go of it."""
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
        """The model has let go of blocks. Raises RemoteProtocolError if one of them was not lent."""
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


def encoded_request(channel: StubChannel, lent: LentInputs, request: InferenceRequest) -> tuple[Any, ...]:
    """A request as :class:`pybackend_wire.host_messages.ExecuteRequest`; its input memory is lent from now on.

    Raises OSError if this process has no descriptor left.
    """
    packed = request.packed
    if packed is not None and len(packed[1]) == len(request.inputs):
        base = channel.append_tail(packed[0])
        inputs = [(name, datatype, shape, TAIL, base + at, nbytes) for name, datatype, shape, at, nbytes in packed[1]]
    else:
        inputs = _places(channel, lent, request)
    outputs: Any = request.requested_outputs
    if request.regions:
        outputs = lent.regions.places(outputs, request.regions)
    options = None
    if request.id or request.has_options:
        trace = request.trace
        if trace is not None:
            trace.begin_execution()
        options = (
            request.id,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            request.parameters,
            0 if trace is None else trace.number,
            "" if trace is None else trace.model_carrier,
        )
    return (inputs, outputs or None, options)


def _places(channel: StubChannel, lent: LentInputs, request: InferenceRequest) -> list[tuple[Any, ...]]:
    inputs: list[tuple[Any, ...]] = []
    append_tail = channel.append_tail
    for tensor in request.inputs:
        lease: Any = tensor.lease
        if lease is None:
            data: Any = tensor.data  # the bytes have arrived by now
            inputs.append((tensor.name, tensor.datatype, tensor.shape, TAIL, append_tail(data), len(data)))
        elif type(lease) is RegionInput:
            source, block = lent.regions.source(lease), lease.block
            if block is not None:
                lent.lend(block)  # type: ignore[arg-type]  # models have no other blocks
            offset = 0 if block is None else block.offset
            inputs.append((tensor.name, tensor.datatype, tensor.shape, source, offset, lease.nbytes))
        else:
            lent.lend(lease)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, lease.segment, lease.offset, lease.nbytes))
    return inputs


def taken_back(lent: LentInputs, request: InferenceRequest) -> bool:
    """The input memory of a request is the host's again; False if the stub had already given some of it back."""
    taken = [lent.take_back(lease) for lease in _blocks(request)]
    return all(taken)


def is_lent(lent: LentInputs, request: InferenceRequest) -> bool:
    """True if the stub has not given back any of the request's input memory."""
    return all(lent.has(lease) for lease in _blocks(request))


def share(request: InferenceRequest) -> None:
    """A stub still has the input memory of a request that is executed once more; it gives it back once more, too."""
    for lease in _blocks(request):
        lease.share()


def _blocks(request: InferenceRequest) -> list[Any]:
    leases: list[Any] = [tensor.lease for tensor in request.inputs]
    blocks = (lease.block if type(lease) is RegionInput else lease for lease in leases)
    return [block for block in blocks if block is not None]
