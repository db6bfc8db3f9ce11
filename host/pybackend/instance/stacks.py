"""Where the threads and coroutines of a stub are: its stacks, read from memory into which it writes them on a signal."""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pybackend.ipc.segment import Segment
from pybackend.observability.log_lines import one_line
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import STACK_END, STACKS_BYTES, STACKS_OFFSET

_LOOKS, _PAUSE_S = 100, 0.02
"""A process whose main thread runs no Python code never says that this is all: then its threads' stacks must do."""

_HEAD = re.compile(r"(.{1,200}) \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_COROUTINE = "Coroutine"
_MOST_STACKS, _MOST_CHARACTERS = 200, 500


@dataclass(frozen=True)
class StackFrame:
    """A call that has not returned."""

    file: str
    line: int  # the one that runs, 0 if it is unknown
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Stack:
    """The stack of a thread or of a coroutine; the innermost call comes first."""

    title: str
    frames: Sequence[StackFrame]

    @property
    def executes(self) -> bool:
        """True if a call of the model's ``execute`` runs there."""
        return any(frame.file.endswith("/pybackend_stub/executor.py") for frame in self.frames)


class StubStacks:
    """Reads the stacks of one stub."""

    def __init__(self, segment: Segment, signal_stub: Callable[[], None]) -> None:
        self._segment = segment
        self._signal_stub = signal_stub
        self._reading: asyncio.Task[list[Stack]] | None = None

    async def read(self) -> list[Stack]:
        """The stacks; empty if the process does not tell. All who ask at the same time get the same."""
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.create_task(self._read())
            reading.add_done_callback(self._forget)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if reading.cancelled():  # the stub is gone
                return []
            raise

    def end(self) -> None:
        """The stub is gone, and its memory is about to go."""
        if self._reading is not None:
            self._reading.cancel()

    def _forget(self, _done: object) -> None:
        self._reading = None

    async def _read(self) -> list[Stack]:
        segment = self._segment
        segment.write(STACKS_OFFSET, bytes(STACKS_BYTES))
        os.lseek(segment.descriptor, STACKS_OFFSET, os.SEEK_SET)  # of the stub's descriptor as well: they share it
        self._signal_stub()
        for _ in range(_LOOKS):
            await asyncio.sleep(_PAUSE_S)
            try:
                found = bytes(segment.read(STACKS_OFFSET, STACKS_BYTES))
            except RemoteProtocolError:  # it has cut its memory short, and has no stack for anybody
                return []
            if STACK_END in found:
                break
        return parse_stacks(found.partition(STACK_END)[0].partition(b"\0")[0].decode("utf-8", "replace"))


def parse_stacks(text: str) -> list[Stack]:
    """The stacks in a text, in the form that CPython's ``faulthandler`` writes."""
    stacks: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        head, frame = _HEAD.fullmatch(line), _FRAME.fullmatch(line)
        if head is not None and len(stacks) < _MOST_STACKS:
            stacks.append((one_line(head[1]), []))
        elif frame is not None and stacks:
            number = int(frame[2][:9]) if frame[2].isdigit() else 0
            file, function = (one_line(part[:_MOST_CHARACTERS]) for part in (frame[1], frame[3]))
            stacks[-1][1].append(StackFrame(file, number, function))
    return [Stack(title, frames) for title, frames in stacks if frames]


def place(stacks: Sequence[Stack], model_file: str) -> str:
    """Where ``execute`` is, in a few words: the innermost call in the model's files, and what that calls.

    Else ``""``.
    """
    directory = f"{PurePath(model_file).parent}/"
    ordered = sorted(stacks, key=lambda stack: (not stack.executes, stack.title != _COROUTINE))
    for stack in ordered:
        own = next((frame for frame in stack.frames if frame.file.startswith(directory)), None)
        if own is not None:
            inner = stack.frames[0]
            return f"{own}" if own is inner else f"{own}, which calls {inner}"
    return f"{ordered[0].frames[0]}" if ordered and ordered[0].executes else ""
