"""A running stub, from its start to its end.

A session starts, initialises and ends a stub. Its instance gives meaning to requests, and starts the next stub.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, get_args

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.debugging import TerminalLine
from pybackend.instance.lent_inputs import LentInputs
from pybackend.instance.output_memory import OutputMemory
from pybackend.instance.services import CallingStub, StubServices
from pybackend.instance.settings import StubSettings
from pybackend.instance.stacks import StubStacks
from pybackend.instance.stub_life import StubLife, last_words
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend.ipc.stub_messages import UNSIGNED_MAX
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.process.stub_process import StubHandle, StubPart
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, Cancel, Collect, Finalize, Flow, Initialize, Load, Offer, Probe
from pybackend_wire.messages import (
    BEGUN_WORD,
    LEGAL,
    PROTOCOL_VERSION,
    STACKS_BYTES,
    STACKS_OFFSET,
    SegmentRole,
    StubState,
)

log = logging.getLogger(__name__)

_EXECUTES = frozenset({StubState.READY, StubState.FINALIZING})


Handler = Callable[[Any, bytes], None]
"""Takes a message, and the tail of the frame that it came with."""


class MessageHandlers:
    """Hands each message of a stub to the part of the host that it concerns, if the stub may send it now.

    Args:
        on_other: takes the messages without a handler.
    """

    _outputs: OutputMemory
    _handlers: Mapping[type, Handler]
    _on_results: Handler

    def __init__(self, life: StubLife, on_other: Handler) -> None:
        self._life = life
        self._on_other = on_other

    def connect(self, outputs: OutputMemory, handlers: Mapping[type, Handler]) -> None:
        """Set the stub's output memory, and a handler for each type of message; comes before the first message.

        That of results takes a list: those that follow each other in a frame.
        """
        self._outputs = outputs
        self._handlers = handlers
        self._on_results = handlers[heard.Result]

    def on_messages(self, messages: list[heard.Message], frame_tail: bytearray) -> None:
        tail = bytes(frame_tail)  # once: slices of bytes are the small outputs' own data
        self._outputs.begin_frame(len(tail))
        results: list[heard.Message] = []
        for message in messages:
            kind = type(message)
            if kind is heard.Result and self._life.state in _EXECUTES:
                results.append(message)
                continue
            if results:
                self._on_results(results, tail)
                results = []
            if heard.KIND[kind] not in LEGAL[self._life.state]:
                raise RemoteProtocolError(f"{kind.__name__} is out of place while {self._life.state.name.lower()}")
            self._handlers.get(kind, self._on_other)(message, tail)
        if results:
            self._on_results(results, tail)


_PROGRESS_BYTES, _WORD_BYTES = STACKS_OFFSET + STACKS_BYTES, 8

EXIT_GRACE_S = 3.0
"""How long a process may live on after ``finalize`` has returned: for buffers, exit handlers and threads of the
model's."""

_CLOSED = "closed its connection to the host and was killed"
_BEGINS = frozenset({StubState.STARTING, StubState.LOADING, StubState.LOADED, StubState.INITIALIZING})
"""The states before a stub executes."""

_STAGES = {
    StubState.STARTING: "its process starts",
    StubState.LOADING: "its code is imported",
    StubState.LOADED: "its files are read",
    StubState.INITIALIZING: "initialize runs",
}

_REACHED: dict[type, StubState] = {heard.Completed: StubState.LOADED, heard.Initialized: StubState.READY}
"""The state in which a stub is once it has said this."""


class ReadinessProbe:
    """Asks a model's ``is_ready``: one question at a time, which all who want to know share."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[str] | None = None

    @property
    def is_asked(self) -> bool:
        """True while a question has no answer."""
        return self._answer is not None

    async def ask(self, send: Callable[[], None], limit_s: float | None) -> str:
        """Why the model is not ready; empty if it is."""
        joins = self._answer is not None
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            send()
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            which = "in-flight is_ready() response" if joins else "user-defined is_ready() response"
            return f"Timed out waiting for {which}"

    def on_readiness(self, readiness: heard.Readiness) -> None:
        """The model's ``is_ready`` has returned. Raises RemoteProtocolError if the host did not ask."""
        if not self.answer("" if readiness.ready else readiness.reason or "is_ready() gave no reason"):
            raise RemoteProtocolError("an answer about readiness that nobody asked for")

    def answer(self, reason: str) -> bool:
        """Answer the open question; False if there is none."""
        answer, self._answer = self._answer, None
        if answer is None:
            return False
        answer.set_result(reason)
        return True


class StubSession:
    """A running stub.

    Args:
        on_end: called once the stub is gone, expected or not, with the end of the sentence "The process ...".
        process: what the stub runs in.
        find_trace: finds the trace with a number, if the stub executes a request of it.
    """

    def __init__(
        self,
        process: StubHandle,
        settings: StubSettings,
        instance: object,
        lease_input: Callable[[int], ArenaLease],
        on_end: Callable[[StubSession, str], None],
        handlers: Mapping[type, Handler],
        find_trace: Callable[[int], RequestTrace | None],
        services: StubServices,
    ) -> None:
        self.has_is_ready = False
        # the stub's report of its sandbox: for each layer the reason why it is not in force, ``""`` if it is
        self.confined: dict[str, str] = {}
        self._instance_name = settings.model.instance_name
        self._services = services
        self.process = process
        self.settings = settings
        self._on_end = on_end
        loop = asyncio.get_running_loop()
        process.on_exit(loop, lambda: self.channel.drain(self._on_drained))
        self._progress = Segment(_PROGRESS_BYTES)
        self.stacks = StubStacks(process.stacks or self._progress, process.ask_for_stacks)
        self._terminal_line: TerminalLine | None = None
        self._life = life = StubLife(settings.model.instance_name)
        message_handlers = MessageHandlers(life, self._on_life)
        self.channel = channel = StubChannel(loop, process.socket, message_handlers.on_messages, self._on_channel_end)
        self.inputs = inputs = LentInputs(channel)
        self.outputs = outputs = OutputMemory(
            channel, settings.output_memory_limit_bytes, settings.disconnect_slow_clients, settings.budget
        )
        self.caller = caller = CallingStub(
            settings, instance, lease_input, channel, life, inputs, outputs, find_trace, process.neighbours
        )
        self.readiness = readiness = ReadinessProbe()
        message_handlers.connect(
            outputs,
            {
                **handlers,
                heard.FreeInput: lambda freed, _: inputs.on_freed(freed),
                heard.NeedOutput: lambda needed, _: outputs.grow(needed.nbytes),
                heard.Detached: lambda detached, _: outputs.detached(detached.segment),
                heard.Wrote: lambda wrote, _: settings.on_wrote(wrote.path),
                heard.Call: partial(services.on_call, caller),
                heard.LocalCall: lambda call, _: self._on_local_call(call),
                heard.CancelCall: lambda cancelled, _: services.on_cancel_call(caller, cancelled.call),
                **dict.fromkeys(get_args(heard.Question), partial(services.on_question, caller)),
                heard.Readiness: lambda answer, _: readiness.on_readiness(answer),
            },
        )

    # Life

    @property
    def stage(self) -> str:
        """The step at which its start is, as a clause."""
        return _STAGES.get(self._life.state, "it is warmed up")

    async def load(self, config_json: str | None) -> dict[str, Any] | None:
        """Import the model; returns what ``auto_complete_config`` made of ``config_json``, if both are there."""
        hello: heard.Hello = await self._life.outcome_of(StubState.STARTING)
        if hello.protocol_version != PROTOCOL_VERSION:
            self.kill()
            raise ModelLoadError(
                f"the model runner speaks version {hello.protocol_version} of the protocol, this host {PROTOCOL_VERSION}: "
                "remove the cached runner and start again"
            )
        self.confined = hello.confined
        try:
            self.settings.launch.check_confined(self.process.pid, self.process.sandbox_report, hello.confined)
        except ModelLoadError:
            self.kill()
            raise
        codec = "msgpack" if "msgpack" in hello.codecs else "json"
        try:
            attach = Attach(self._progress.number, _PROGRESS_BYTES, SegmentRole.PROGRESS)
            self.channel.post_attach(attach, self._progress.descriptor)
            if self.settings.terminal is not None:
                self._terminal_line, theirs = self.settings.terminal.connect(self._instance_name)
                with theirs:
                    self.channel.post_attach(Attach(0, 0, SegmentRole.TERMINAL), theirs.fileno())
        except OSError as error:
            self.kill()
            raise ModelLoadError(f"cannot start a model process: {error.strerror}", ErrorCode.UNAVAILABLE) from error
        self.channel.post(Load(codec, config_json, self.settings.model))
        self.channel.flush()
        self.channel.codec = codec
        completed: dict[str, Any] | None = await self._life.outcome_of(StubState.LOADING)
        return completed

    @property
    def left_terminal_ns(self) -> int:
        """When the model's debugger gave the terminal back last, which is now while it has it; 0 if it never did."""
        return 0 if self._terminal_line is None else self._terminal_line.left_ns

    async def initialize(self, message: Initialize) -> None:
        """Call ``initialize``; afterwards the stub executes."""
        self.channel.post(message)
        initialized: heard.Initialized = await self._life.outcome_of(StubState.INITIALIZING)
        self.has_is_ready = initialized.has_is_ready

    async def finalize(self) -> None:
        """Let the model end; returns when its process is gone."""
        if self._life.state in {StubState.READY, StubState.LOADED}:
            self.channel.post(Finalize())
            try:
                await self._life.outcome_of(StubState.FINALIZING)
            except ModelLoadError:
                return  # it died on the way, as the caller wanted
        elif self._life.state is not StubState.GONE:
            self.kill()
        try:
            async with asyncio.timeout(EXIT_GRACE_S):
                await self._life.gone()
        except TimeoutError:
            log.warning(
                "process %d of instance '%s' is killed: its model is finalized, but a thread that is no daemon, or an "
                "exit handler, keeps it alive",
                self.process.pid,
                self._instance_name,
            )
            self.kill()
            await self._life.gone()

    def kill(self, cause: str = "") -> None:
        """End the process at once; ``cause`` completes the sentence "The process ..." if it was alive until now."""
        if not self.process.is_exiting:
            self._life.end_cause = self._life.end_cause or cause
        self.process.kill(self._life.end_cause)

    # Requests; executions are posted to the channel

    def cancel(self, execution: int, index: int) -> None:
        """Tell the model, when it asks, that nobody waits for a request any more."""
        self.channel.post(Cancel(execution, index))
        self._hurry()

    def flow(self, execution: int, index: int, allowed: int | None) -> None:
        """Say how many responses of a request are accepted. A stub reads this before each response that it sends."""
        self.channel.post(Flow(execution, index, allowed))

    def offer(self, *, offered: bool) -> None:
        """Say whether other models in the process may run this one, for calls that name no version."""
        if self.process.is_shared:
            self.channel.post(Offer(offered))

    def ask_readiness(self) -> None:
        """Ask the model's ``is_ready``; :attr:`readiness` hears the answer."""
        self.channel.post(Probe())
        self._hurry()

    def collect(self) -> None:
        """Have it run the garbage collector; only while nothing is executed."""
        self.channel.post(Collect())

    def _hurry(self) -> None:
        """Have it read at once, even while it computes."""
        self.channel.flush()
        self.process.nudge()

    def last_begun(self) -> int:
        """The execution that the stub has begun last, 0 for none.

        For a stub that is dead (it could still write there).
        """
        try:
            return int.from_bytes(self._progress.read(BEGUN_WORD * _WORD_BYTES, _WORD_BYTES), "little")
        except RemoteProtocolError:  # it has cut its count short: anything may have begun
            return UNSIGNED_MAX

    # Messages of the stub about itself

    def _on_life(self, message: heard.Message, _tail: bytes) -> None:
        match message:
            case heard.Failed():
                self.process.read_output()
                self.process.has_finished = True
                self._life.fail(ModelLoadError(message.failure.message, ErrorCode(message.failure.code)))
                return
            case heard.Completed():
                outcome: object = heard.completed_config(message, self.channel.codec)
            case heard.Finalized():
                self.process.has_finished = True
                outcome = message
            case _:
                outcome = message
        self.process.read_output()
        self._life.reach(_REACHED.get(type(message)), outcome)

    def check_shared(self) -> None:
        """Raise RemoteProtocolError unless other models live in the same process."""
        if not self.process.is_shared:
            raise RemoteProtocolError("a call of another model in a process that has none")

    def _on_local_call(self, call: heard.LocalCall) -> None:
        self.check_shared()
        callee = self.caller.neighbours.get(call.instance)
        if callee is not None:  # otherwise it has left meanwhile
            callee.instance.on_local_call(call)

    # The end

    def _on_channel_end(self, error: RemoteProtocolError | None) -> None:
        if isinstance(self.process, StubPart):
            self.process.on_hung_up()
        if error is not None:
            log.error("stub process '%s' broke the protocol and is being killed: %s", self._instance_name, error)
            self._life.end_cause = f"broke the protocol between host and model process ({error}) and was killed"
            self.kill()
        elif self._life.state in _BEGINS:  # it is about to exit, and its status says more than a signal of ours
            asyncio.get_running_loop().call_later(EXIT_GRACE_S, self.kill, _CLOSED)
        elif self._life.state is not StubState.FINALIZING:
            # A stub that closed its socket can do nothing any more, whatever keeps its process alive.
            self.kill(_CLOSED)

    def _on_drained(self) -> None:
        cause = self._life.end_cause or self.process.exit_cause
        if self._life.state in _BEGINS:  # later, its lines may be about requests of clients
            cause += last_words(self.process.last_lines, self.settings.model.model_file)
        last = self._life.leave(cause)
        with ExitStack() as end:  # from the last to the first, and all of it, whatever one of them raises
            end.callback(self._life.end, last)
            end.callback(self._progress.close)
            end.callback(self.stacks.end)
            if self._terminal_line is not None:
                end.callback(self._terminal_line.close)
            end.callback(self.outputs.close)
            end.callback(self.inputs.release_all)
            end.callback(self._services.on_gone, self.caller)
            end.callback(self.caller.close)
            end.callback(self._on_end, self, cause)
