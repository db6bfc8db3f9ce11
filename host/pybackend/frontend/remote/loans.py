"""The engine's side of the tensor memory that one front end has: segments for inputs, and outputs that it sends to clients.

A front end allocates in its segments and writes bodies straight into them. What it says about them is checked here: it may only name
blocks within its own segments, each once at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import chain, count
from typing import Any, cast
from weakref import WeakKeyDictionary

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import Channel
from pybackend.frontend.remote.open_questions import OpenQuestions
from pybackend.frontend.slices import Slices, in_slices
from pybackend.inference.region import IN_REGION
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer, OutputTensor
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.ipc.segment import Segment, place_of
from pybackend.loop_turn import loop_turn_of
from pybackend.model.model import Model
from pybackend_wire.allocation import ALIGNMENT_BYTES
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import INLINE_BYTES

_MOST_INLINE_BYTES = 16 * INLINE_BYTES
"""Most bytes of outputs in one message."""

MOST_COPIES_BYTES = 1024 * 1024 * 1024
"""Most bytes of large answers of the server's own, such as those of the response cache, that wait in one front end."""


class _LentSegment:
    """A segment that a front end has, and its blocks in use."""

    def __init__(self, memory: InputLoans, arena: TensorArena, segment: Segment) -> None:
        self.arena = arena
        self.segment = segment
        self.used: set[int] = set()
        self._memory = memory

    def give_back(self, lease: ArenaLease) -> None:
        """The block of a request is the front end's again."""
        self.used.discard(lease.offset)
        self._memory.freed(self, lease.offset)


class InputLoans:
    """The segments in which a front end writes inputs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._segments: dict[int, _LentSegment] = {}
        self._pools: WeakKeyDictionary[TensorArena, int] = WeakKeyDictionary()
        self._pool_numbers = count(1)
        self._making_room = OpenQuestions("it does not say what memory it can return, which others need")
        self.alive = self._making_room.alive
        self._freed: list[tuple[int, int]] = []
        self._is_over = False

    def lend(self, model: Model, asked: messages.NeedMemory) -> None:
        """Lend the memory that an input needs. Raises InferenceError UNAVAILABLE if there is none."""
        arena = model.arena_of(asked.input_name)
        present = sum([each.segment.size_bytes for each in self._segments.values() if each.arena is arena])
        segment = arena.lend(asked.nbytes, present)
        try:
            descriptor = os.dup(segment.descriptor)
        except OSError as error:
            arena.take_back(segment)
            raise InferenceError(f"cannot hand over a segment: {error.strerror}", ErrorCode.UNAVAILABLE) from error
        self._segments[segment.number] = _LentSegment(self, arena, segment)
        pool = self._pools.setdefault(arena, next(self._pool_numbers))
        told = messages.InputSegment(pool, segment.number, segment.size_bytes, not arena.is_crowded)
        self._channel.post_with(told, descriptor)

    def make_room(self, arena: TensorArena, then: Callable[[], None]) -> bool:
        """Have the front end return what it does not use of an arena; ``then`` follows. False if it has nothing."""
        pool = 0 if arena.budget.is_short else self._pools.get(arena)
        if pool is None or not self._segments:
            return False
        self._channel.post(messages.MakeRoom(self._making_room.ask(then), pool))
        self._channel.flush()
        return True

    def room_made(self, told: messages.Room) -> None:
        """It has returned what it could. Raises RemoteProtocolError if no such question is open."""
        self._making_room.answered(told.number)

    def lease(self, place: tuple[int, int], nbytes: int) -> ArenaLease:
        """The block that a request names. Raises RemoteProtocolError if the front end may not use it."""
        number, offset = place
        lent = self._segments.get(number)
        if (
            lent is None
            or offset + nbytes > lent.segment.size_bytes
            or offset % ALIGNMENT_BYTES
            or offset in lent.used
            or not nbytes
        ):
            raise RemoteProtocolError("a request names memory that it may not use")
        lent.used.add(offset)
        lent.arena.leased_bytes += nbytes
        return ArenaLease(lent.segment, offset, nbytes, lent.give_back)

    def freed(self, lent: _LentSegment, offset: int) -> None:
        """A block is no longer used by a request."""
        if not self._is_over:
            if not self._freed:
                loop_turn_of(self._channel.loop).soon(self._post_freed)
            self._freed.append((lent.segment.number, offset))
        elif not lent.used:
            lent.arena.take_back(lent.segment)

    def _post_freed(self) -> None:
        freed, self._freed = self._freed, []
        self._channel.post(messages.Freed(freed))

    def returned(self, number: int) -> None:
        """The front end needs a segment no more."""
        lent = self._segments.pop(number, None)
        if lent is None or lent.used:
            raise RemoteProtocolError("a segment returned that the front end does not have, or that requests use")
        lent.arena.take_back(lent.segment)

    def end(self) -> None:
        """The front end is gone: its segments are closed once no request uses them."""
        self._is_over = True
        segments, self._segments = list(self._segments.values()), {}
        for lent in segments:
            if not lent.used:
                lent.arena.take_back(lent.segment)
        self._making_room.end()


class OutputLoans:
    """The responses whose memory a front end reads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count(1)
        self._lent: dict[int, tuple[InferenceResponse, list[ArenaLease]]] = {}
        self._attached: dict[int, Segment] = {}
        self._dropping = OpenQuestions("it keeps the memory of slow clients, which others need")
        self.alive = self._dropping.alive
        self._copies = TensorArena(MOST_COPIES_BYTES, "a front end")

    def post(self, ticket: int, response: InferenceResponse) -> None:
        """Send a response, with the places of its large outputs."""
        outputs: list[messages.Output] = []
        places: list[messages.OutputSlice | None] = []
        copies: list[ArenaLease] = []
        number = 0
        left = _MOST_INLINE_BYTES
        failure = (
            None if response.error is None else messages.TicketFailure(response.error.code, response.error.message)
        )
        try:
            for output in response.outputs if failure is None else ():
                left -= len(output.data)
                place = self._place(output, copies, inline=left >= 0)
                places.append(place)
                data = b"" if place is not None else bytes(output.data)
                outputs.append(messages.Output(output.name, output.datatype, output.shape, data))
        except InferenceError as error:
            for lease in copies:
                lease.release()
            outputs, places, copies, failure = [], [], [], messages.TicketFailure(error.code, error.message)
        if any(place is not None and place.segment for place in places):
            number = next(self._numbers)
            self._lent[number] = (response, copies)
        self._channel.post(
            messages.Responded(
                ticket,
                response.model_version,
                outputs,
                places if any(places) else None,
                number,
                cast("Any", response.parameters),
                failure,
                response.final,
                response.empty,
            )
        )
        if not number:
            response.release()

    def _place(self, output: OutputTensor, copies: list[ArenaLease], *, inline: bool) -> messages.OutputSlice | None:
        """Where the front end finds an output; None for one that travels in the message."""
        data = output.data
        if data is IN_REGION:
            return messages.OutputSlice(0, 0, 0)
        nbytes = len(data)
        if not nbytes or (inline and nbytes <= INLINE_BYTES):
            return None
        found = place_of(data) if isinstance(data, memoryview) else None
        if found is None or not self._attach(found[0]):
            lease = self._copies.lease(nbytes)
            copies.append(lease)
            lease.view[:] = data
            found = (lease.memory, lease.offset)
            if not self._attach(lease.memory):
                raise InferenceError("the server has no file descriptors left", ErrorCode.UNAVAILABLE)
        return messages.OutputSlice(found[0].number, found[1], nbytes)

    def _attach(self, segment: Segment) -> bool:
        """Hand a segment over for reading; False if that cannot be."""
        if segment.number in self._attached:
            return True
        try:
            descriptor = os.open(f"/proc/self/fd/{segment.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        self._attached[segment.number] = segment
        self._channel.post_with(messages.Attached(segment.number, segment.size_bytes), descriptor)
        return True

    def released(self, asked: messages.Release) -> None:
        """The front end has sent responses. Raises RemoteProtocolError if it did not have one of them."""
        for number in asked.numbers:
            lent = self._lent.pop(number, None)
            if lent is None:
                raise RemoteProtocolError("a response released that the front end does not have")
            _release(*lent)

    def drop_readers(self, is_part: Callable[[Buffer], bool], nbytes: int, then: Callable[[], None]) -> bool:
        """Disconnect slow clients of the front end; see :meth:`pybackend.frontend.flow.ClientMemory.drop_readers`."""
        parts = [
            output.data for response, _ in self._lent.values() for output in response.outputs if is_part(output.data)
        ]
        places = [place_of(data) for data in parts if isinstance(data, memoryview)]
        segments = {place[0].number for place in places if place is not None}
        if not segments:
            return False
        self._channel.post(messages.DropReaders(self._dropping.ask(then), list(segments), nbytes))
        return True

    def dropped(self, told: messages.Dropped) -> None:
        """Slow clients have left. Raises RemoteProtocolError if no such question is open."""
        self._dropping.answered(told.number)

    def trim(self, now_ns: int) -> None:
        """Let go of segments that were closed; called about once a second."""
        self._copies.trim(now_ns, lambda _segment: None)
        for number, segment in list(self._attached.items()):
            if segment.descriptor < 0:
                del self._attached[number]
                self._channel.post(messages.DetachedOutput(number))

    def end(self) -> None:
        """The front end is gone: the memory of its responses is released, in slices."""
        lent, self._lent = self._lent, {}
        releases = (partial(_release, *each) for each in lent.values())
        Slices().add(in_slices(chain(releases, (self._copies.close,))))
        self._attached.clear()
        self._dropping.end()


def _release(response: InferenceResponse, copies: list[ArenaLease]) -> None:
    response.release()
    for lease in copies:
        lease.release()
