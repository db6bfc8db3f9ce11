"""The processes of a group: each runs one instance of several models, which join it one by one and leave it likewise.

Towards its instance, a member is a stub process like any other. The things that only a process can do, such as being
killed, one member does for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from pybackend.ipc import stub_messages as heard
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend.ipc.unwanted_descriptors import close
from pybackend.observability.model_output import ModelOutput
from pybackend.process.stub_process import HostEnds, Start, StubPart, StubProcess, control_ends
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, Finalize, Join
from pybackend_wire.messages import STACKS_BYTES, STACKS_OFFSET, SegmentRole

log = logging.getLogger(__name__)

_EXIT_GRACE_S = 3.0
"""How long a process may live on without members: for exit handlers, and threads of theirs."""


class MemberProcess(StubPart):
    """One model's part of a process."""

    def __init__(self, process: GroupProcess, ends: HostEnds) -> None:
        stub = process.stub
        super().__init__(ends, stub.pid, stub.process, stub.output, stub.sandbox_report)
        self.stacks = process.stacks
        self.neighbours = process.stubs
        self._process = process

    @property
    def exit_cause(self) -> str:
        return self._process.exit_cause

    @property
    def is_exiting(self) -> bool:
        return self.has_finished or self._process.stub.is_exiting

    def on_hung_up(self) -> None:
        if self.has_finished:
            self._process.leave(self)

    def kill(self, cause: str = "") -> None:
        """End the process with all its members, unless this one ends by itself."""
        if self.has_finished:
            self._process.leave(self)
        else:
            self._process.stub.kill(cause)

    def discard(self) -> None:
        self.has_finished = True
        self._process.leave(self)
        close(self.socket)

    def exited(self) -> None:
        """The model runs there no more."""
        self.has_finished = True
        self._close_nudges()
        self._tell_exit()


class GroupProcess:
    """A process that runs one instance of each member.

    Attributes:
        is_open: False once it has ended, or is about to.
        stacks: where it writes the stacks of all its threads.
        stubs: its members by the names of their instances, as those see each other.
    """

    def __init__(self, stub: StubProcess, name: str, on_end: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.is_open = True
        self.stub = stub
        self.stubs: dict[str, Any] = {}
        self.stacks = Segment(STACKS_OFFSET + STACKS_BYTES)
        self._loop = loop
        self._name = name
        self._on_end = on_end
        self._failure = ""
        self._killing: asyncio.TimerHandle | None = None
        self._members: list[MemberProcess] = []
        with ExitStack() as failed:
            failed.callback(self.stacks.close)
            stub.on_exit(loop, self._on_exit)
            self._channel = StubChannel(loop, stub.socket, self._on_messages, self._on_channel_end)
            failed.callback(self._channel.close)
            self._channel.post_attach(
                Attach(self.stacks.number, STACKS_OFFSET + STACKS_BYTES, SegmentRole.PROGRESS), self.stacks.descriptor
            )
            failed.pop_all()

    def join(self) -> MemberProcess:
        """Let another model join. Raises OSError: the server has no descriptors left."""
        try:
            member = self._join()
        except OSError:
            self._end_if_empty()
            raise
        self._members.append(member)
        return member

    def _join(self) -> MemberProcess:
        with control_ends() as (ours, theirs):
            self._channel.post_attach(Join(self._name), theirs.socket, theirs.nudges)
        return MemberProcess(self, ours)

    def leave(self, member: MemberProcess) -> None:
        """A model has ended, and the others go on; the process ends with the last one."""
        if member in self._members:
            self._members.remove(member)
            self._loop.call_soon(member.exited)
            self._end_if_empty()

    def _end_if_empty(self) -> None:
        if not self._members and self.is_open:
            self.is_open = False
            self._channel.post(Finalize())
            self._killing = self._loop.call_later(_EXIT_GRACE_S, self.stub.kill)

    @property
    def exit_cause(self) -> str:
        return f"could not start: {self._failure}" if self._failure else self.stub.exit_cause

    def _on_messages(self, messages: list[heard.Message], _tail: bytearray) -> None:
        for message in messages:
            match message:
                case heard.Failed():
                    self._failure = message.failure.message
                case heard.Hello() | heard.Finalized():
                    pass
                case _:
                    raise RemoteProtocolError(f"{type(message).__name__} is out of place for a process of a group")

    def _on_channel_end(self, error: RemoteProtocolError | None) -> None:
        self.is_open = False
        if error is not None:
            self._failure = f"it broke the protocol ({error})"
            self.stub.kill()

    def _on_exit(self) -> None:
        self.is_open = False
        if self._killing is not None:
            self._killing.cancel()
        self._channel.drain(self._on_drained)

    def _on_drained(self) -> None:
        members, self._members = self._members, []
        if members:
            log.error(
                "process '%s' of a process group %s. It ran %d instances of its models: each is restarted",
                self._name,
                self.exit_cause,
                len(members),
            )
        with ExitStack() as end:  # from the last to the first, and all of it
            end.callback(self._on_end)
            end.callback(self.stacks.close)
            for member in members:
                end.callback(member.exited)


class GroupProcesses:
    """The processes of one group, by their numbers: an instance joins the one with its own number.

    Args:
        name: for the log, and for ``ps``.
        end_leftovers: kills what the process with a number has left behind.
    """

    def __init__(self, name: str, end_leftovers: Callable[[int], Awaitable[None]]) -> None:
        self._name = name
        self._end_leftovers = end_leftovers
        self._processes: dict[int, GroupProcess] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._outputs: dict[int, ModelOutput] = {}
        self._ended: dict[int, asyncio.Event] = {}

    async def join(self, number: int, start: Start) -> MemberProcess:
        """Let a model join the process with this number, which is started if there is none."""
        async with self._locks[number]:
            process = self._processes.get(number)
            if process is None or not process.is_open:
                if process is not None:
                    await self._ended[number].wait()
                await self._end_leftovers(number)
                process = self._processes[number] = self._begin(number, await start())
            return process.join()

    def _begin(self, number: int, stub: StubProcess) -> GroupProcess:
        name = f"{self._name}_{number}"
        output = self._outputs.get(number)
        if output is None:
            output = self._outputs[number] = ModelOutput(name)
        stub.send_output_to(output)
        ended = asyncio.Event()
        try:
            process = GroupProcess(stub, name, ended.set)
        except OSError:
            stub.discard()
            raise
        self._ended[number] = ended
        return process

    async def ended(self) -> None:
        """Wait until all processes have ended; their last members have left."""
        for ended in self._ended.values():
            await ended.wait()
