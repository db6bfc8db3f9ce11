"""One life of one stub, from its start to its end, as seen by the host.

A session starts, initialises and ends a stub; what requests mean and whether to start another life is the instance's business.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import Any, Protocol

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.dispatch import ExecutionListener, MessageDispatch
from pybackend.instance.lent_inputs import LentInputs
from pybackend.instance.output_memory import OutputMemory
from pybackend.instance.plan import LoadPlan
from pybackend.instance.services import StubServices
from pybackend.instance.stacks import StubStacks
from pybackend.instance.stub_caller import StubCaller
from pybackend.instance.stub_life import StubLife, last_words
from pybackend.instance.terminal import TerminalLine
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend.ipc.stub_messages import UNSIGNED_MAX
from pybackend.process.stub_process import StubProcess
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Attach, Cancel, Collect, Finalize, Flow, Initialize, Load, Probe
from pybackend_wire.messages import (
    BEGUN_WORD,
    CORE_WORD,
    NUDGE_TO_ANSWER,
    PROTOCOL_VERSION,
    STACKS_BYTES,
    STACKS_OFFSET,
    SegmentRole,
)
from pybackend_wire.states import StubState

log = logging.getLogger(__name__)

_PROGRESS_BYTES, _WORD_BYTES = STACKS_OFFSET + STACKS_BYTES, 8

EXIT_GRACE_S = 3.0
"""How long a process may live on after ``finalize`` has returned: for buffers, exit handlers and threads of the model's."""

_CLOSED = "closed its connection to the host and was killed"
_BEGINS = frozenset({StubState.STARTING, StubState.LOADING, StubState.LOADED, StubState.INITIALIZING})
"""The states before a stub executes."""

_REACHED: dict[type, StubState] = {heard.Completed: StubState.LOADED, heard.Initialized: StubState.READY}
"""The state in which a stub is once it has said this."""


class SessionOwner(Protocol):
    """The instance that a session is a life of."""

    def on_readiness(self, readiness: heard.Readiness) -> None:
        """The model's ``is_ready`` has returned."""

    def lease_input(self, nbytes: int) -> ArenaLease:
        """Input memory of the model.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """

    def on_end(self, session: StubSession, cause: str) -> None:
        """The stub is gone, expected or not; ``cause`` completes the sentence "The process ..."."""


class StubSession:
    """A running stub.

    Args:
        process: just started.
        plan: what it loads.
        owner: the instance.
        executions: hears what the stub says about executions.
        services: answer what its model asks.

    Attributes:
        channel: carries executions to it; see :func:`~pybackend.instance.encoding.encoded_request`.
        inputs: the input memory that it was lent.
        outputs: the memory in which it leaves its outputs.
        caller: the stub, for those who serve its model's questions.
        stacks: where its threads are.
        has_is_ready: the model has an ``is_ready`` to be asked.
        confined: what the stub says about its sandbox: by layer, why it is not in force, ``""`` where it is.
    """

    def __init__(
        self,
        process: StubProcess,
        plan: LoadPlan,
        owner: SessionOwner,
        executions: ExecutionListener,
        services: StubServices,
    ) -> None:
        self.has_is_ready = False
        self.confined: dict[str, str] = {}
        self._instance_name = plan.model.instance_name
        self._services = services
        self._process = process
        self._plan = plan
        self._owner = owner
        loop = asyncio.get_running_loop()
        process.watch(loop, self._on_exit)
        self._progress = Segment(_PROGRESS_BYTES)
        self.stacks = StubStacks(self._progress, process.ask_for_stacks)
        self._terminal_line: TerminalLine | None = None
        self._life = life = StubLife(plan.model.instance_name)
        dispatch = MessageDispatch(life, executions, self._on_life)
        self.channel = channel = StubChannel(loop, process.socket, dispatch.on_messages, self._on_channel_end)
        self.inputs = inputs = LentInputs(channel)
        self.outputs = outputs = OutputMemory(channel, plan.output_memory_limit_bytes, plan.make_room, plan.budget)
        self.caller = StubCaller(plan, owner, owner.lease_input, channel, life, inputs, outputs, executions.find_trace)
        dispatch.connect(inputs, outputs, self.caller, services)

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
        hello: heard.Hello = await self._life.outcome_of(StubState.STARTING)
        if hello.protocol_version != PROTOCOL_VERSION:
            self.kill()
            raise ModelLoadError(
                f"the model runner speaks version {hello.protocol_version} of the protocol, this host {PROTOCOL_VERSION}: "
                "remove the cached runner and start again"
            )
        self.confined = hello.confined
        try:
            self._plan.launch.check_confined(self._process, hello.confined)
        except ModelLoadError:
            self.kill()
            raise
        codec = "msgpack" if "msgpack" in hello.codecs else "json"
        try:
            attach = Attach(self._progress.number, _PROGRESS_BYTES, SegmentRole.PROGRESS)
            self.channel.post_attach(attach, self._progress.descriptor)
            self._connect_terminal()
        except OSError as error:
            self.kill()
            raise ModelLoadError(f"cannot start a model process: {error.strerror}", ErrorCode.UNAVAILABLE) from error
        self.channel.post(Load(codec, config_json, self._plan.model))
        self.channel.flush()
        self.channel.use_codec(codec)
        completed: dict[str, Any] | None = await self._life.outcome_of(StubState.LOADING)
        return completed

    def _connect_terminal(self) -> None:
        if self._plan.terminal is not None:
            self._terminal_line, theirs = self._plan.terminal.connect(self._instance_name)
            with theirs:
                self.channel.post_attach(Attach(0, 0, SegmentRole.TERMINAL), theirs.fileno())

    @property
    def left_terminal_ns(self) -> int:
        """When the model's debugger gave the terminal back last, which is now while it has it; 0 if it never did."""
        return 0 if self._terminal_line is None else self._terminal_line.left_ns

    async def initialize(self, message: Initialize) -> None:
        """Call ``initialize``; afterwards the stub executes.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
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
                self.pid,
                self._instance_name,
            )
            self.kill()
            await self._life.gone()

    def kill(self, cause: str = "") -> None:
        """End the process at once; ``cause`` completes the sentence "The process ..." if it was alive until now."""
        if not self._process.is_exiting:
            self._life.end_cause = self._life.end_cause or cause
        self._process.kill()

    # Requests; executions are posted to the channel

    def cancel(self, execution: int, index: int) -> None:
        """Tell the model, when it asks, that nobody waits for a request any more."""
        self.channel.post(Cancel(execution, index))
        self._hurry()

    def flow(self, execution: int, index: int, allowed: int | None) -> None:
        """Say how many responses of a request are accepted. A stub reads this before each response that it sends."""
        self.channel.post(Flow(execution, index, allowed))

    def probe(self) -> None:
        """Ask the model whether it is ready; only while no answer is due."""
        self.channel.post(Probe())
        self._hurry()

    def collect(self) -> None:
        """Have it run the garbage collector; only while nothing is executed."""
        self.channel.post(Collect())

    def _hurry(self) -> None:
        """Have it read at once, even while it computes."""
        self.channel.flush()
        self._process.nudge()

    @property
    def next_frame(self) -> int:
        """The number of the frame in which a message leaves that is posted now."""
        return self.channel.next_frame

    def wait_on(self, core: int | None) -> None:
        """Have the stub's main thread wait on this core from now on; anywhere if None."""
        if self._life.state is not StubState.GONE:
            wanted = 0 if core is None else core + 1
            self._progress.write(CORE_WORD * _WORD_BYTES, wanted.to_bytes(_WORD_BYTES, "little"))

    def ask_for_answers(self) -> None:
        """Have it send the answers that it has kept while an execution runs."""
        self._process.nudge(NUDGE_TO_ANSWER)

    def recall(self) -> None:
        """Have it send the answers that it has kept, and hand back what it has not begun."""
        self._process.nudge()

    def last_begun(self) -> int:
        """The execution that the stub has begun last, 0 for none; for a stub that is dead (it could still write there)."""
        try:
            return int.from_bytes(self._progress.read(BEGUN_WORD * _WORD_BYTES, _WORD_BYTES), "little")
        except RemoteProtocolError:  # it has cut its count short: anything may have begun
            return UNSIGNED_MAX

    # Messages of the stub about itself

    def _on_life(self, message: heard.Message) -> None:
        match message:
            case heard.Readiness():
                self._owner.on_readiness(message)
                return
            case heard.Failed():
                self._process.read_output()
                self._life.fail(ModelLoadError(message.failure.message, ErrorCode(message.failure.code)))
                return
            case heard.Completed():
                outcome: object = heard.completed_config(message, self.channel.codec)
            case _:
                outcome = message
        self._process.read_output()
        self._life.reach(_REACHED.get(type(message)), outcome)

    # The end

    def _on_channel_end(self, error: RemoteProtocolError | None) -> None:
        if error is not None:
            log.error("stub process '%s' broke the protocol and is being killed: %s", self._instance_name, error)
            self._life.end_cause = f"broke the protocol between host and model process ({error}) and was killed"
            self.kill()
        elif self._life.state in _BEGINS:  # it is about to exit, and its status says more than a signal of ours
            asyncio.get_running_loop().call_later(EXIT_GRACE_S, self.kill, _CLOSED)
        elif self._life.state is not StubState.FINALIZING:
            # A stub that closed its socket can do nothing any more, whatever keeps its process alive.
            self.kill(_CLOSED)

    def _on_exit(self) -> None:
        self.channel.drain(self._on_drained)

    def _on_drained(self) -> None:
        cause = self._life.end_cause or self._process.exit_cause
        if self._life.state in _BEGINS:  # later, its lines may be about requests of clients
            cause += last_words(self._process.last_lines, self._plan.model.model_file)
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
            end.callback(self._owner.on_end, self, cause)
