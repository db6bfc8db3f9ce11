"""Regions of clients that a stub has been given: each once, until the region is gone."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import cast

from pybackend.inference.region import RegionInput, RegionOutput, RegionPart
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.client_region import Access, ClientRegion
from pybackend_wire.host_messages import VIEW, Attach, Detach, OutputPlace, RegionSource
from pybackend_wire.messages import TAIL, SegmentRole


class LentRegions:
    """The regions that one stub has.

    Args:
        channel: to the stub.
    """

    def __init__(self, channel: StubChannel) -> None:
        self._channel = channel
        self._attached: dict[int, weakref.finalize[..., ClientRegion]] = {}

    def source(self, part: RegionInput) -> RegionSource:
        """The source of an input, for the stub.

        Raises:
            OSError: this process has no descriptor left.
        """
        region = _region_of(part)
        block = VIEW if part.is_view else TAIL if part.block is None else part.block.segment
        return RegionSource(self._number(region, region.reading), part.offset, block)

    def places(
        self, names: Sequence[str], outputs: Mapping[str, RegionOutput]
    ) -> dict[str, OutputPlace | None] | Sequence[str]:
        """The requested outputs, for the stub: with their places if it writes any of them to regions.

        Args:
            names: of all requested outputs.
            outputs: the destinations of some of them.

        Raises:
            OSError: this process has no descriptor left.
        """
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
        """The stub is gone."""
        for detaching in self._attached.values():
            detaching.detach()
        self._attached.clear()


def is_place_of(part: RegionOutput, segment: int, offset: int, nbytes: int) -> bool:
    """True if a stub says that it has written an output where it was told to."""
    return (
        part.by_stub and segment == _region_of(part).writing.number and offset == part.offset and nbytes <= part.nbytes
    )


def _region_of(part: RegionPart) -> ClientRegion:
    return cast("ClientRegion", part.region)  # the only kind of region that a server has
