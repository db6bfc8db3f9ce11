"""Services of the host for a model, seen from its instance: the side that asks, and the side that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pybackend.errors import InferenceError
from pybackend.ipc import stub_messages as heard

if TYPE_CHECKING:
    from pybackend.inference.tensor import Buffer
    from pybackend.ipc.arena import ArenaLease
    from pybackend.sandbox.grant import Grant
    from pybackend.tracing.request_trace import RequestTrace


class Caller(Protocol):
    """One stub's life, as far as those matter who answer its questions.

    Attributes:
        instance_name: for messages.
        model_name: the full name of the model that runs there.
        namespace: of that model; ``""`` on a server without namespaces.
        instance: what this is a life of, and the next one will be; only good for telling instances apart.
    """

    instance_name: str
    model_name: str
    namespace: str
    instance: object

    @property
    def grant(self) -> Grant | None:
        """Bounds of the models that it loads; None if nothing confines it."""

    @property
    def backlog_bytes(self) -> int:
        """What the stub has not read yet: messages that its socket has not taken, and tensors that messages point to."""

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Call this once the stub has read everything, or is gone."""

    def lend(self, lease: ArenaLease) -> None:
        """Hand a block of :meth:`lease` to the stub, which gives it back when the model lets go of it.

        Raises:
            OSError: this process has no descriptor left.
        """

    def take_back(self, lease: ArenaLease) -> bool:
        """Undo :meth:`lend` for what the stub has not heard of; False if it was not lent."""

    def place_inline(self, data: Buffer, nbytes: int) -> int:
        """Put a small tensor's bytes into this turn's frame; returns their offset in its tail."""

    @property
    def is_initializing(self) -> bool:
        """True while the model's ``initialize`` runs."""

    @property
    def is_open(self) -> bool:
        """False once the stub is gone: what is answered then goes nowhere."""

    def answer(self, call: int, value: bool | float | None) -> None:
        """Answer a question; nothing happens if the stub is gone."""

    def refuse(self, call: int, error: InferenceError) -> None:
        """Tell why a question has no answer."""

    def read_tensor(self, place: heard.TensorPlace, tail: bytes) -> Buffer:
        """The bytes of a tensor that came with a message; valid until :meth:`let_go`, or for ever if they lay in the tail.

        Raises:
            RemoteProtocolError: they lie where the stub may not write.
        """

    def let_go(self, places: Sequence[heard.TensorPlace]) -> None:
        """Give the memory of tensors back that :meth:`read_tensor` gave."""

    def lease(self, nbytes: int) -> ArenaLease:
        """Memory for a tensor that goes to the model.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """

    def find_trace(self, number: int) -> RequestTrace | None:
        """The trace with this number, if the stub executes a request of it."""

    def reply(self, call: int, *, final: bool, result: tuple[Any, ...] | None) -> None:
        """Send a response to a call: :class:`pybackend_wire.messages.RequestResult` without leases, or only the flag."""


class StubServices(Protocol):
    """Answers what models ask."""

    def on_call(self, caller: Caller, call: heard.Call, tail: bytes) -> None:
        """The model runs another model.

        Raises:
            RemoteProtocolError: the stub broke the contract.
        """

    def on_cancel_call(self, caller: Caller, call: int) -> None:
        """The model wants no more responses to a call; nothing happens if it is finished."""

    def on_cancelled(self, caller: Caller, execution: int) -> None:
        """Nobody waits for an execution any more, and its model wants the calls it makes to end with it."""

    def on_question(self, caller: Caller, question: heard.Question, tail: bytes) -> None:
        """The model asks about metrics or models.

        Raises:
            RemoteProtocolError: the stub broke the contract.
        """

    def on_gone(self, caller: Caller) -> None:
        """The stub's life is over: forget it, and cancel what it waits for."""

    def on_given_up(self) -> None:
        """An instance does not come back soon: there may be calls that wait for nothing else."""

    def on_turn(self, model_name: str) -> None:
        """A model, given by its full name, has lost its last instance, or has one again: ensembles may need it."""

    def on_retired(self, instance: object) -> None:
        """The instance is stopped: none of its stubs' lives will be followed by another one."""
