"""The services that a model can call: their interface, and the calling stub as they see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from pybackend.errors import InferenceError
from pybackend.inference.tensor import Buffer
from pybackend.instance.lent_inputs import LentInputs
from pybackend.instance.output_memory import OutputMemory
from pybackend.instance.settings import StubSettings
from pybackend.instance.stub_life import StubLife
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.ipc.channel import StubChannel
from pybackend.modelconfig.schema import full_name
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend.sandbox.grant import Grant
from pybackend_wire.host_messages import Answer, Reply, encoded
from pybackend_wire.messages import TAIL, Failure, StubState

FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.05
"""How soon the host first checks whether a stub that others wait for has read everything, and the longest pause between
checks."""


MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""Limit on the answers that one process does not read."""

MOST_UNREAD_OF_MODEL_BYTES = 2 * MOST_UNREAD_BYTES
"""The same for all processes of a model together."""

_encode = msgspec.msgpack.Encoder().encode


class CallingStub:
    """A running stub, as seen by the services that answer its calls.

    Args:
        instance: tells the services which stubs follow each other.
        neighbours: the stubs in its process by the names of their instances; None if it is alone there.
    """

    def __init__(
        self,
        settings: StubSettings,
        instance: object,
        lease_input: Callable[[int], ArenaLease],
        channel: StubChannel,
        life: StubLife,
        inputs: LentInputs,
        outputs: OutputMemory,
        find_trace: Callable[[int], RequestTrace | None],
        neighbours: dict[str, CallingStub] | None,
    ) -> None:
        self.find_trace = find_trace
        self.instance_name = settings.model.instance_name
        self.namespace = settings.namespace
        self.model_name = full_name(settings.namespace, settings.model.model_name)  # the full name of its model
        self.instance: Any = instance
        self._settings = settings
        # allocates memory for a tensor that goes to the model; raises InferenceError (UNAVAILABLE) at its limit
        self.lease = lease_input
        self._channel = channel
        self._life = life
        self.inputs = inputs  # the memory that was lent to the stub
        self.outputs = outputs  # the memory in which it leaves tensors
        self._loop = asyncio.get_running_loop()
        self._answer_bytes = 0
        settings.callers.add(self)
        self.neighbours: dict[str, CallingStub] = {}  # the stubs in a shared process, itself included
        if neighbours is not None:
            self.neighbours = neighbours
            neighbours[self.instance_name] = self

    def close(self) -> None:
        self._settings.callers.discard(self)
        if self.neighbours.get(self.instance_name) is self:
            del self.neighbours[self.instance_name]

    @property
    def grant(self) -> Grant | None:
        """The limits of the models that it may load; None if it is not confined."""
        sandbox = self._settings.launch.sandbox
        return None if sandbox is None else sandbox.grant

    @property
    def is_initializing(self) -> bool:
        return self._life.state is StubState.INITIALIZING

    @property
    def is_open(self) -> bool:
        """False once the stub is gone: answers are then dropped."""
        return self._life.state is not StubState.GONE and self._channel.is_open

    # Answers

    def answer(self, call: int, value: bool | float | None) -> None:
        self._say(Answer(call, None, value))

    def refuse(self, call: int, error: InferenceError) -> None:
        self._say(Answer(call, Failure(int(error.code), error.message), None))

    def reply(self, call: int, *, final: bool, result: tuple[Any, ...] | None) -> None:
        """Send a response to a call: a :class:`pybackend_wire.messages.RequestResult` without leases, or only the flag."""
        self._say(Reply(call, final, result))

    def _say(self, message: Answer | Reply) -> None:
        channel = self._channel
        channel.post(message)
        if not channel.backlog_bytes:
            self._answer_bytes = 0
            return
        self._answer_bytes += len(_encode(encoded(message)))
        unread, limit = self.unread_bytes, MOST_UNREAD_BYTES
        if unread <= limit:
            callers: set[CallingStub] = self._settings.callers
            unread, limit = sum(caller.unread_bytes for caller in callers), MOST_UNREAD_OF_MODEL_BYTES
        if unread > limit:
            whose = "of its model's processes" if limit == MOST_UNREAD_OF_MODEL_BYTES else "to its calls"
            channel.fail(f"{unread} bytes of answers {whose} are unread, {limit} is the most")

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the stub's socket has not taken."""
        return min(self._answer_bytes, self._channel.backlog_bytes) if self._channel.is_open else 0

    @property
    def backlog_bytes(self) -> int:
        """Bytes that the stub has not read yet: messages that its socket has not taken, and tensors that were lent to it."""
        return self._channel.backlog_bytes + self.inputs.unread_bytes

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Call this once the stub has read everything, or is gone."""
        self._loop.call_later(FIRST_LOOK_S, self._check_drained, callback, FIRST_LOOK_S)

    def _check_drained(self, callback: Callable[[], None], waited_s: float) -> None:
        # No event tells when the other end of a socket has read it all; the stub has no reason to.
        if self._channel.has_unread:
            next_s = min(2 * waited_s, LONGEST_LOOK_S)
            self._loop.call_later(next_s, self._check_drained, callback, next_s)
        else:
            self.inputs.unread_bytes = 0
            callback()

    # Tensors

    def place_inline(self, data: Buffer, nbytes: int) -> int:
        """Add a small tensor's bytes to this turn's frame; returns their offset in its tail."""
        self._answer_bytes += nbytes
        return self._channel.append_tail(data)

    def let_go(self, places: Sequence[heard.TensorPlace]) -> None:
        """Release the memory of tensors that were read from :attr:`outputs`."""
        blocks = [(place.segment, place.offset) for place in places if place.segment != TAIL]
        if blocks:
            self.outputs.let_go(blocks)


class StubServices(Protocol):
    """Answers the calls and questions of models."""

    def on_call(self, caller: CallingStub, call: heard.Call, tail: bytes) -> None:
        """The model runs another model."""

    def on_local_call(self, code: int | None) -> None:
        """A model has run another one in the process that they share, which answered with this error or a result."""

    def on_cancel_call(self, caller: CallingStub, call: int) -> None:
        """The model wants no more responses to a call; nothing happens if it is finished."""

    def on_cancelled(self, caller: CallingStub, execution: int) -> None:
        """All requests of an execution are cancelled, and its model wants the calls that it made to be cancelled too."""

    def on_question(self, caller: CallingStub, question: heard.Question, tail: bytes) -> None:
        """The model asks about metrics or models."""

    def on_gone(self, caller: CallingStub) -> None:
        """The stub has ended: forget it, and cancel the calls that it waits for."""

    def on_given_up(self) -> None:
        """An instance was given up for now: calls may wait for it alone."""

    def on_turn(self, model_name: str) -> None:
        """A model has lost its last instance, or has one again: ensembles may need it. The name is the full one."""

    def on_retired(self, instance: object) -> None:
        """The instance is stopped: it will have no more stubs."""
