"""Dispatch of a stub's messages: each goes to the part of the host that it concerns, if the stub may say it now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, get_args

from pybackend.instance.lent_inputs import LentInputs
from pybackend.instance.output_memory import OutputMemory
from pybackend.instance.services import Caller, StubServices
from pybackend.instance.stub_life import StubLife
from pybackend.ipc import stub_messages as heard
from pybackend.tracing.request_trace import RequestTrace
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.states import LEGAL, StubState

_EXECUTES = frozenset({StubState.READY, StubState.FINALIZING})


class ExecutionListener(Protocol):
    """Hears what a stub says about the executions that it was sent."""

    def on_result(self, result: heard.Result, tail: bytes) -> None:
        """``execute`` has returned."""

    def on_respond(self, respond: heard.Respond, tail: bytes) -> None:
        """A response was sent by a sender."""

    def on_rescheduled(self, rescheduled: heard.Rescheduled) -> None:
        """``execute`` is about to return; the model wants to see some of its requests once more."""

    def on_dropped_output(self, dropped: heard.DroppedOutput) -> None:
        """The model has returned an output whose name is not configured, for the first time."""

    def on_handed_back(self, executions: Sequence[int]) -> None:
        """The stub is busy, and gives back what it has not begun."""

    def find_trace(self, number: int) -> RequestTrace | None:
        """The trace with this number, if the stub executes a request of it."""


class MessageDispatch:
    """Takes the frames of one stub apart; :meth:`connect` comes before the first of them.

    Args:
        life: of the stub; says which messages are legal.
        executions: hears what concerns executions.
        on_life: takes what ends a state of the stub, and the rest.
    """

    _outputs: OutputMemory

    def __init__(self, life: StubLife, executions: ExecutionListener, on_life: Callable[[Any], None]) -> None:
        self._life = life
        self._executions = executions
        self._on_life = on_life
        self._with_tail: dict[type, Callable[[Any, bytes], None]] = {}
        self._without_tail: dict[type, Callable[[Any], None]] = {}

    def connect(self, inputs: LentInputs, outputs: OutputMemory, caller: Caller, services: StubServices) -> None:
        """Say who else is told.

        Args:
            inputs: lent to the stub.
            outputs: the memory in which it leaves its outputs.
            caller: the stub, for those who answer its model.
            services: those who answer.
        """
        executions = self._executions
        self._outputs = outputs
        self._with_tail = {
            heard.Respond: executions.on_respond,
            heard.Call: partial(services.on_call, caller),
            **dict.fromkeys(get_args(heard.Question), partial(services.on_question, caller)),
        }
        self._without_tail = {
            heard.FreeInput: inputs.on_freed,
            heard.NeedOutput: lambda needed: outputs.grow(needed.nbytes),
            heard.Detached: lambda detached: outputs.detached(detached.segment),
            heard.Rescheduled: executions.on_rescheduled,
            heard.DroppedOutput: executions.on_dropped_output,
            heard.HandedBack: lambda handed_back: executions.on_handed_back(handed_back.executions),
            heard.CancelCall: lambda cancelled: services.on_cancel_call(caller, cancelled.call),
        }

    def on_messages(self, messages: list[heard.Message], frame_tail: bytearray) -> None:
        """Take a frame.

        Raises:
            RemoteProtocolError: the stub broke the contract.
        """
        tail = bytes(frame_tail)  # once: slices of bytes are the small outputs' own data
        self._outputs.begin_frame(len(tail))
        for message in messages:
            kind = type(message)
            if kind is heard.Result and self._life.state in _EXECUTES:
                self._executions.on_result(message, tail)  # type: ignore[arg-type]
                continue
            if heard.KIND[kind] not in LEGAL[self._life.state]:
                raise RemoteProtocolError(f"{kind.__name__} is out of place while {self._life.state.name.lower()}")
            handler = self._with_tail.get(kind)
            if handler is not None:
                handler(message, tail)
            else:
                self._without_tail.get(kind, self._on_life)(message)
