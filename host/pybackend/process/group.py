"""The processes of a group: each runs one instance of several models, which join it one by one and leave it likewise.

Towards its instance, a member is a stub process like any other. The things that only a process can do, such as being killed, one
member does for all of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from pybackend.ipc import stub_messages as heard
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend.ipc.unwanted_descriptors import close
from pybackend.observability.model_output import ModelOutput
from pybackend.process.start import SandboxReport
from pybackend.process.stub_process import Start, StubProcess, socket_ends
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, Finalize, Join
from pybackend_wire.messages import NUDGE, STACKS_BYTES, STACKS_OFFSET, SegmentRole

_EXIT_GRACE_S = 3.0
"""How long a process may live on without members: for exit handlers, and threads of theirs."""


class MemberProcess:
    """One model's part of a process; see :class:`~pybackend.process.stub_process.StubProcess`."""

    is_shared = True
    instance_name = ""
    instance: Any = None

    def __init__(self, process: GroupProcess, sock: socket.socket, nudges: int) -> None:
        self.socket = sock
        self.stacks = process.stacks
        self._process = process
        self._nudges = nudges
        self._on_exit: Callable[[], None] | None = None
        self._has_ended = False

    def answer_to(self, instance_name: str, instance: Any) -> None:
        self.instance_name, self.instance = instance_name, instance

    def neighbour(self, instance_name: str) -> Any:
        """Another instance in the process by its name; None if there is none, or not any more."""
        return self._process.find(instance_name)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def sandbox_report(self) -> SandboxReport | None:
        return self._process.stub.sandbox_report

    def on_exit(self, _loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
        """Call ``on_exit`` once, on the loop, after the model has left the process, or the process has ended."""
        self._on_exit = on_exit

    def send_output_to(self, output: ModelOutput) -> None:
        """Do nothing: what a process prints belongs to all its members."""

    def read_output(self) -> None:
        self._process.stub.read_output()

    @property
    def last_lines(self) -> list[str]:
        return self._process.stub.last_lines

    @property
    def exit_cause(self) -> str:
        return self._process.exit_cause

    @property
    def is_exiting(self) -> bool:
        return self._has_ended or self._process.stub.is_exiting

    def nudge(self, nudge: bytes = NUDGE) -> None:
        if self._nudges >= 0:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._nudges, nudge)

    def ask_for_stacks(self) -> None:
        self._process.stub.ask_for_stacks()

    def expect_end(self) -> None:
        """The stub has said its last word, and its thread ends: nothing has to be killed any more."""
        self._has_ended = True

    def on_hung_up(self) -> None:
        """The stub has closed its socket."""
        if self._has_ended:
            self._process.leave(self)

    def kill(self) -> None:
        """End the process with all its members, unless this one has ended by itself."""
        if self._has_ended:
            self._process.leave(self)
        else:
            self._process.stub.kill()

    def discard(self) -> None:
        """Let go of a part that was never used."""
        self._has_ended = True
        self._process.leave(self)
        close(self.socket)

    def exited(self) -> None:
        """The model runs there no more."""
        self._has_ended = True
        if self._nudges >= 0:
            os.close(self._nudges)
            self._nudges = -1
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit()


class GroupProcess:
    """A process that runs one instance of each member.

    Attributes:
        is_open: False once it has ended, or is about to.
        stacks: where it writes the stacks of all its threads.
    """

    def __init__(self, stub: StubProcess, name: str, on_end: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.is_open = True
        self.stub = stub
        self.pid = stub.pid
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
        with ExitStack() as ours, ExitStack() as theirs:
            our_end, their_end = socket_ends(ours, theirs)
            their_nudges, our_nudges = os.pipe()
            ours.callback(os.close, our_nudges)
            theirs.callback(os.close, their_nudges)
            os.set_blocking(our_nudges, False)
            self._channel.post_attach(Join(self._name), their_end.fileno(), their_nudges)
            ours.pop_all()
        return MemberProcess(self, our_end, our_nudges)

    def find(self, instance_name: str) -> Any:
        """The instance of this name; None if it is not in the process."""
        return next((member.instance for member in self._members if member.instance_name == instance_name), None)

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
