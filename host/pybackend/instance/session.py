"""One life of one stub, from its start to its end, as seen by the host.

A session knows messages, memory and states; what requests mean and whether to start another life is the instance's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, get_args

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.tensor import Buffer
from pybackend.instance.launch import StubSettings
from pybackend.instance.output_memory import OutputMemory
from pybackend.instance.services import StubServices
from pybackend.instance.stub_process import StubProcess
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend.ipc.segment import Segment
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import PROTOCOL_VERSION, TAIL, HostMessage, SegmentRole
from pybackend_wire.states import LEGAL, StubState

log = logging.getLogger(__name__)

_PROGRESS_BYTES = 4096

FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.05
"""How soon, and later how often, it is looked whether a stub that others must wait for has read what there is."""

EXIT_GRACE_S = 3.0
"""How long a process may live on after ``finalize`` has returned: for buffers, exit handlers and threads of the model's."""


class SessionOwner(Protocol):
    """Who is told what a session's stub does."""

    def on_result(self, result: heard.Result, tail: bytes) -> None:
        """``execute`` has returned."""

    def on_respond(self, respond: heard.Respond, tail: bytes) -> None:
        """A response was sent by a sender."""

    def on_rescheduled(self, rescheduled: heard.Rescheduled) -> None:
        """``execute`` is about to return; the model wants to see some of its requests once more."""

    def on_handed_back(self, executions: Sequence[int]) -> None:
        """The stub is busy, and gives back what it has not begun."""

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
    """A running stub. For those who serve its model's questions it is a :class:`~pybackend.instance.services.Caller`.

    Attributes:
        instance_name: the instance it runs.
        model_name: the model.
        instance: what this is a life of.
        outputs: the memory in which it leaves its outputs.
        has_is_ready: the model has an ``is_ready`` to be asked.
        confined: what the stub says about its sandbox: by layer, why it is not in force, ``""`` where it is.
    """

    def __init__(
        self, process: StubProcess, settings: StubSettings, owner: SessionOwner, services: StubServices
    ) -> None:
        self.instance_name = settings.instance_name
        self.model_name = settings.model_name
        self.instance: object = owner
        self.has_is_ready = False
        self.confined: dict[str, str] = {}
        self._services = services
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
        self._lent_again: Counter[tuple[int, int]] = Counter()
        """How often a block was lent that was lent already: to requests that are executed more than once."""
        self._unread_bytes = 0
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
        self.confined = hello.confined
        try:
            self._settings.check_confined(self.pid, hello.confined)
        except ModelLoadError:
            self.kill()
            raise
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
                settings.of_backend,
                settings.debugger,
            )
        )
        self._channel.flush()
        self._channel.use_codec(codec)
        completed: heard.Completed = await self._answer_in(StubState.LOADING)
        return completed.config

    async def initialize(
        self,
        args: dict[str, str],
        output_names: Sequence[str],
        *,
        copy_inputs: bool,
        decoupled: bool,
        concurrency: int,
        reschedules: bool = False,
    ) -> None:
        """Call ``initialize``; afterwards the stub executes.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
        self._channel.post(
            (HostMessage.INITIALIZE, args, list(output_names), copy_inputs, decoupled, concurrency, reschedules)
        )
        initialized: heard.Initialized = await self._answer_in(StubState.INITIALIZING)
        self.has_is_ready = initialized.has_is_ready

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

    def execute(self, execution: int, requests: Sequence[tuple[Any, ...]]) -> None:
        """Send one execution; see :meth:`place_inline` and :meth:`lend` for how its tensors are placed."""
        self._channel.post((HostMessage.EXECUTE, execution, requests))

    def cancel(self, execution: int, index: int) -> None:
        """Tell the model, when it asks, that nobody waits for a request any more."""
        self._channel.post((HostMessage.CANCEL, execution, index))
        self._hurry()

    def flow(self, execution: int, index: int, *, paused: bool) -> None:
        """Keep the model from sending more responses to a request, or let it go on."""
        self._channel.post((HostMessage.FLOW, execution, index, paused))
        self._hurry()

    def probe(self) -> None:
        """Ask the model whether it is ready; only while no answer is due."""
        self._channel.post((HostMessage.PROBE,))
        self._hurry()

    def _hurry(self) -> None:
        """Have it read at once, even while it computes."""
        self._channel.flush()
        self._process.nudge()

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
        place = lease.segment, lease.offset
        if place in self._lent:
            self._lent_again[place] += 1
        self._lent[place] = lease
        if self._unread_bytes and not self._channel.has_unread:
            self._unread_bytes = 0
        self._unread_bytes += lease.nbytes

    def take_back(self, lease: ArenaLease) -> bool:
        """Undo :meth:`lend` for a request that was not sent, or that a stub that is dead had not begun.

        False if the stub gave the block back before, which no honest one does with what it has not begun.
        """
        return self._returned((lease.segment, lease.offset)) is lease

    def has_lent(self, lease: ArenaLease) -> bool:
        """True until the stub gives the block back."""
        return self._lent.get((lease.segment, lease.offset)) is lease

    def _returned(self, place: tuple[int, int]) -> ArenaLease | None:
        """What was lent there is the host's again, once; None if nothing was."""
        if place not in self._lent_again:
            return self._lent.pop(place, None)
        self._lent_again[place] -= 1
        if not self._lent_again[place]:
            del self._lent_again[place]
        return self._lent[place]

    def last_begun(self) -> int:
        """The execution that the stub has begun last, 0 for none; for a stub that is dead (it could still write there)."""
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

    # What the model asks

    @property
    def is_initializing(self) -> bool:
        """True while the model's ``initialize`` runs."""
        return self._state is StubState.INITIALIZING

    @property
    def is_open(self) -> bool:
        """False once the stub is gone."""
        return self._state is not StubState.GONE and self._channel.is_open

    @property
    def backlog_bytes(self) -> int:
        """What the stub has not read yet: messages that its socket has not taken, and tensors that were lent to it."""
        return self._channel.backlog_bytes + self._unread_bytes

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Call this once the stub has read everything, or is gone."""
        self._loop.call_later(FIRST_LOOK_S, self._look_whether_drained, callback, FIRST_LOOK_S)

    def _look_whether_drained(self, callback: Callable[[], None], waited_s: float) -> None:
        # No event tells when the other end of a socket has read it all; the stub has no reason to.
        if self._channel.has_unread:
            next_s = min(2 * waited_s, LONGEST_LOOK_S)
            self._loop.call_later(next_s, self._look_whether_drained, callback, next_s)
        else:
            self._unread_bytes = 0
            callback()

    def answer(self, call: int, value: bool | float | None) -> None:
        """Answer a question."""
        self._channel.post((HostMessage.ANSWER, call, None, value))

    def refuse(self, call: int, error: InferenceError) -> None:
        """Tell why a question has no answer."""
        self._channel.post((HostMessage.ANSWER, call, (int(error.code), error.message), None))

    def take(self, place: heard.Place, tail: bytes) -> Buffer:
        """The bytes of a tensor that came with a question or a call."""
        return self.outputs.take(place, tail)

    def let_go(self, places: Sequence[heard.Place]) -> None:
        """Give the memory of tensors back that :meth:`take` gave."""
        blocks = [(place.segment, place.offset) for place in places if place.segment != TAIL]
        if blocks:
            self.outputs.let_go(blocks)

    def lease(self, nbytes: int) -> ArenaLease:
        """Memory for a tensor that goes to the model."""
        return self._owner.lease_input(nbytes)

    def reply(self, call: int, *, final: bool, result: tuple[Any, ...] | None) -> None:
        """Send a response to a call."""
        self._channel.post((HostMessage.REPLY, call, final, result))

    # What the stub says

    def _on_messages(self, messages: list[heard.Message], frame_tail: bytearray) -> None:
        tail = bytes(frame_tail)  # once: slices of bytes are the small outputs' own data
        for message in messages:
            kind = type(message)
            if kind is heard.Result and self._state in _EXECUTES:
                self._owner.on_result(message, tail)  # type: ignore[arg-type]
                continue
            if heard.KIND[kind] not in LEGAL[self._state]:
                raise RemoteProtocolError(f"{kind.__name__} is out of place while {self._state.name.lower()}")
            if kind in _FROM_THE_MODEL:
                self._on_model(message, tail)
            else:
                self._on_message(message)

    def _on_model(self, message: heard.Message, tail: bytes) -> None:
        match message:
            case heard.Respond():
                self._owner.on_respond(message, tail)
            case heard.Call():
                self._services.on_call(self, message, tail)
            case heard.CancelCall():
                self._services.on_cancel_call(self, message.call)
            case _:
                self._services.on_question(self, message, tail)  # type: ignore[arg-type]  # all others are questions

    def _on_message(self, message: heard.Message) -> None:
        match message:
            case heard.FreeInput():
                for place in message.blocks:
                    lease = self._returned(place)
                    if lease is None:
                        raise RemoteProtocolError(f"input block {place} was not lent")
                    lease.release()
            case heard.NeedOutput():
                self.outputs.grow(message.nbytes)
            case heard.Detached():
                self.outputs.detached(message.segment)
            case heard.Rescheduled():
                self._owner.on_rescheduled(message)
            case heard.HandedBack():
                self._owner.on_handed_back(message.executions)
            case heard.Readiness():
                self._owner.on_readiness(message)
            case heard.Failed():
                self._process.read_output()
                self._settle(ModelLoadError(message.failure.message, ErrorCode(message.failure.code)))
            case _:
                self._process.read_output()
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
        self._channel.drain(self._on_drained)

    def _on_drained(self) -> None:
        cause = self._end_cause or self._process.exit_cause
        state, self._state = self._state, StubState.GONE
        self._owner.on_end(self, cause)
        self._services.on_gone(self)
        for place, lease in self._lent.items():
            for _ in range(1 + self._lent_again[place]):
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

_FROM_THE_MODEL = frozenset({heard.Respond, heard.Call, heard.CancelCall, *get_args(heard.Question)})
"""What a model causes, beside being executed; the rest is between stub and host."""


def unhealthy(instance_name: str, cause: str) -> str:
    """The text for whatever a dead stub leaves undone."""
    text = f"Stub process '{instance_name}' is not healthy."
    return f"{text} The process {cause}." if cause else text
