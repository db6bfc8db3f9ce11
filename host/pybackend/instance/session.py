"""One life of one stub, from its start to its end, as seen by the host.

A session knows messages, memory and states; what requests mean and whether to start another life is the instance's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.output_memory import OutputMemory
from pybackend.instance.stub_process import StubProcess
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import (
    LEGAL,
    PROTOCOL_VERSION,
    HostMessage,
    SegmentRole,
    StubState,
)

log = logging.getLogger(__name__)

_PROGRESS_BYTES = 4096

EXIT_GRACE_S = 3.0
"""How long a process may live on after ``finalize`` has returned: for buffers, exit handlers and threads of the model's."""


@dataclass(frozen=True)
class StubSettings:
    """What one instance tells its stub.

    Attributes:
        instance_name: for messages and models.
        model_name: the model.
        model_file: absolute path of the file to import.
        version_directory: what ``get_model_dir()`` returns.
        output_memory_limit_bytes: most that the instance's output segments may hold together.
    """

    instance_name: str
    model_name: str
    model_file: str
    version_directory: str
    output_memory_limit_bytes: int


class SessionOwner(Protocol):
    """Who is told what a session's stub does."""

    def on_result(self, result: heard.Result, tail: bytes) -> None:
        """The oldest execution is answered."""

    def on_log(self, line: heard.Log) -> None:
        """The model logs a line."""

    def on_end(self, session: StubSession, cause: str) -> None:
        """The stub is gone, expected or not; ``cause`` completes the sentence "The process ..."."""


class StubSession:
    """A running stub.

    Attributes:
        outputs: the memory in which it leaves its outputs.
    """

    def __init__(self, process: StubProcess, settings: StubSettings, owner: SessionOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._settings = settings
        self._owner = owner
        self._state = StubState.STARTING
        self._awaited: asyncio.Future[Any] | None = None
        process.watch(self._loop, self._on_exit)
        self._progress = Segment(_PROGRESS_BYTES)
        self._attached: set[int] = set()
        self._lent: dict[tuple[int, int], ArenaLease] = {}
        self._end_cause = ""
        self._channel = StubChannel(self._loop, process.socket, self._on_messages, self._on_channel_end)
        self.outputs = OutputMemory(self._channel, settings.output_memory_limit_bytes)

    @property
    def pid(self) -> int:
        """The stub's process id."""
        return self._process.pid

    # Life

    async def load(self, config_json: str | None) -> dict[str, Any] | None:
        """Import the model; returns what ``auto_complete_config`` made of ``config_json``, if both are there.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
        hello: heard.Hello = await self._answer_in(StubState.STARTING)
        if hello.protocol_version != PROTOCOL_VERSION:
            self.kill()
            raise ModelLoadError(
                f"the model runner speaks version {hello.protocol_version} of the protocol, this host {PROTOCOL_VERSION}: "
                "remove the cached runner and start again"
            )
        codec = "msgpack" if "msgpack" in hello.codecs else "json"
        settings = self._settings
        try:
            self._channel.post_descriptor(
                (HostMessage.ATTACH, self._progress.number, _PROGRESS_BYTES, SegmentRole.PROGRESS),
                self._progress.descriptor,
            )
        except OSError as error:
            self.kill()
            raise ModelLoadError(f"cannot start a model process: {error.strerror}", ErrorCode.UNAVAILABLE) from error
        self._channel.post(
            (
                HostMessage.LOAD,
                codec,
                settings.model_file,
                settings.model_name,
                settings.instance_name,
                settings.version_directory,
                config_json,
            )
        )
        self._channel.flush()
        self._channel.use_codec(codec)
        completed: heard.Completed = await self._answer_in(StubState.LOADING)
        return completed.config

    async def initialize(self, args: dict[str, str], output_names: Sequence[str], *, copy_inputs: bool) -> None:
        """Call ``initialize``; afterwards the stub executes.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
        self._channel.post((HostMessage.INITIALIZE, args, list(output_names), copy_inputs))
        await self._answer_in(StubState.INITIALIZING)

    async def finalize(self) -> None:
        """Let the model end; returns when its process is gone."""
        if self._state in {StubState.READY, StubState.LOADED}:
            self._channel.post((HostMessage.FINALIZE,))
            try:
                await self._answer_in(StubState.FINALIZING)
            except ModelLoadError:
                return  # it died on the way, which is what was wanted
        elif self._state is not StubState.GONE:
            self.kill()
        try:
            async with asyncio.timeout(EXIT_GRACE_S):
                await self._gone()
        except TimeoutError:
            log.warning(
                "process %d of instance '%s' is killed: its model is finalized, but a thread that is no daemon, or an "
                "exit handler, keeps it alive",
                self.pid,
                self._settings.instance_name,
            )
            self.kill()
            await self._gone()

    async def _gone(self) -> None:
        while self._state is not StubState.GONE:  # whatever it says meanwhile
            self._awaited = self._loop.create_future()
            with suppress(ModelLoadError):  # a death is an end too
                await self._awaited

    def kill(self, cause: str = "") -> None:
        """End the process at once; ``cause`` completes the sentence "The process ..." if it was alive until now."""
        if not self._process.is_exiting:
            self._end_cause = self._end_cause or cause
        self._process.kill()

    # Requests

    def execute(self, requests: Sequence[tuple[Any, ...]]) -> None:
        """Send one execution; see :meth:`place_input` for how its tensors are placed."""
        self._channel.post((HostMessage.EXECUTE, requests))

    def place_inline(self, data: Any, nbytes: int) -> int:
        """Put a small tensor's bytes into this turn's frame; returns their offset in its tail."""
        return self._channel.append_tail(data, nbytes)

    def lend(self, lease: ArenaLease) -> None:
        """Hand an input block to the stub, which gives it back when the model lets go of it.

        Raises:
            OSError: this process has no descriptor left.
        """
        if lease.segment not in self._attached:
            self._channel.post_descriptor(
                (HostMessage.ATTACH, lease.segment, lease.memory.size_bytes, SegmentRole.INPUT), lease.memory.descriptor
            )
            self._attached.add(lease.segment)
        lease.publish()
        self._lent[lease.segment, lease.offset] = lease

    def take_back(self, lease: ArenaLease) -> bool:
        """Undo :meth:`lend` for a request that was not sent, or that a stub that is dead had not begun.

        False if the stub gave the block back before, which no honest one does with what it has not begun.
        """
        return self._lent.pop((lease.segment, lease.offset), None) is lease

    def executions_begun(self) -> int:
        """How many executions the stub has begun in its life; for a stub that is dead (it could still write there)."""
        return int.from_bytes(self._progress.read(0, 8), "little")

    def nudge(self) -> None:
        """Ask the stub for the answers that it has kept while a slow execution runs."""
        self._process.nudge()

    def detach_input(self, segment: int) -> None:
        """An input segment goes back to the system."""
        if segment in self._attached:
            self._attached.discard(segment)
            if self._channel.is_open:
                self._channel.post((HostMessage.DETACH, segment))

    # What the stub says

    def _on_messages(self, messages: list[heard.Message], frame_tail: bytearray) -> None:
        tail = bytes(frame_tail)  # once: slices of bytes are the small outputs' own data
        for message in messages:
            if type(message) is heard.Result and self._state in _EXECUTES:
                self._owner.on_result(message, tail)
                continue
            if heard.KIND[type(message)] not in LEGAL[self._state]:
                raise RemoteProtocolError(f"{type(message).__name__} is out of place while {self._state.name.lower()}")
            self._on_message(message)

    def _on_message(self, message: heard.Message) -> None:
        match message:
            case heard.FreeInput():
                for place in message.blocks:
                    lease = self._lent.pop(place, None)
                    if lease is None:
                        raise RemoteProtocolError(f"input block {place} was not lent")
                    lease.release()
            case heard.NeedOutput():
                self.outputs.grow(message.nbytes)
            case heard.Detached():
                self.outputs.detached(message.segment)
            case heard.Log():
                self._owner.on_log(message)
            case heard.Failed():
                self._settle(ModelLoadError(message.failure.message, ErrorCode(message.failure.code)))
            case _:
                # Here, not where the answer is awaited: the stub may die before the waiter's turn comes.
                self._state = _REACHED.get(type(message), self._state)
                self._settle(message)

    async def _answer_in(self, state: StubState) -> Any:
        """The message that ends a state, or the error that it said instead."""
        if self._state is StubState.GONE:
            raise self._death()
        self._state = state
        self._awaited = self._loop.create_future()
        return await self._awaited

    def _settle(self, outcome: heard.Message | ModelLoadError | None) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            if isinstance(outcome, ModelLoadError):
                awaited.set_exception(outcome)
            else:
                awaited.set_result(outcome)

    # The end

    def _on_channel_end(self, error: RemoteProtocolError | None) -> None:
        if error is not None:
            log.error("stub process '%s' broke the protocol and is killed: %s", self._settings.instance_name, error)
            self._end_cause = f"broke the protocol between host and model process ({error}) and was killed"
            self.kill()
        elif self._state is not StubState.FINALIZING:
            # A stub that closed its socket can do nothing any more, whatever keeps its process alive.
            self.kill("closed its connection to the host and was killed")

    def _on_exit(self) -> None:
        self._channel.drain()
        cause = self._end_cause or self._process.exit_cause
        state, self._state = self._state, StubState.GONE
        self._owner.on_end(self, cause)
        for lease in self._lent.values():
            lease.release()
        self._lent.clear()
        self.outputs.close()
        self._progress.close()
        self._end_cause = cause
        self._settle(None if state is StubState.FINALIZING else self._death())

    def _death(self) -> ModelLoadError:
        return ModelLoadError(unhealthy(self._settings.instance_name, self._end_cause))


_REACHED: dict[type, StubState] = {heard.Completed: StubState.LOADED, heard.Initialized: StubState.READY}
"""The state in which a stub is once it has said this."""

_EXECUTES = frozenset({StubState.READY, StubState.FINALIZING})


def unhealthy(instance_name: str, cause: str) -> str:
    """The text for whatever a dead stub leaves undone."""
    text = f"Stub process '{instance_name}' is not healthy."
    return f"{text} The process {cause}." if cause else text
