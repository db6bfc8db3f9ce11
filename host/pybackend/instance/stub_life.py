"""Where a stub is in its life, and the message that ends its present state."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pybackend.errors import ModelLoadError
from pybackend.instance.stacks import parse_stacks, place
from pybackend.observability.log_lines import one_line
from pybackend_wire.messages import StubState

_MOST_CHARACTERS = 300


class StubLife:
    """The states of one stub, from its start to its end."""

    def __init__(self, instance_name: str) -> None:
        self.state = StubState.STARTING
        # why it ended or is about to, completing the sentence "The process ..."; empty while it lives
        self.end_cause = ""
        self._instance_name = instance_name
        self._loop = asyncio.get_running_loop()
        self._awaited: asyncio.Future[Any] | None = None

    async def outcome_of(self, state: StubState) -> Any:
        """Enter a state and wait for the message that ends it.

        Raises ModelLoadError if the stub said an error instead, or died.
        """
        if self.state is StubState.GONE:
            raise self._death()
        self.state = state
        self._awaited = self._loop.create_future()
        return await self._awaited

    async def gone(self) -> None:
        """Wait until the stub is gone, whatever it says meanwhile."""
        while self.state is not StubState.GONE:
            self._awaited = self._loop.create_future()
            with suppress(ModelLoadError):  # a death is an end too
                await self._awaited

    def reach(self, state: StubState | None, outcome: object) -> None:
        """The message has come that ends the present state.

        Args:
            state: the next one; None if what was awaited decides that.
        """
        # Here, not where the outcome is awaited: the stub may die before the waiter's turn comes.
        if state is not None:
            self.state = state
        self._resolve_awaited(outcome)

    def fail(self, error: ModelLoadError) -> None:
        """The stub says why the present state ends in nothing."""
        self._resolve_awaited(error)

    def leave(self, cause: str) -> StubState:
        """The stub is gone; returns the state it was in. What waits for it is told by :meth:`end`."""
        state, self.state = self.state, StubState.GONE
        self.end_cause = cause
        return state

    def end(self, last: StubState) -> None:
        self._resolve_awaited(None if last is StubState.FINALIZING else self._death())

    def _resolve_awaited(self, outcome: object) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            if isinstance(outcome, ModelLoadError):
                awaited.set_exception(outcome)
            else:
                awaited.set_result(outcome)

    def _death(self) -> ModelLoadError:
        return ModelLoadError(unhealthy(self._instance_name, self.end_cause))


def last_words(lines: Sequence[str], model_file: str) -> str:
    """The last words of a process, to be appended to the cause of its death; empty if it has said nothing."""
    where = place(parse_stacks("\n".join(lines)), model_file)  # a fatal signal has the stacks printed
    if where:
        return f". It was at {where}"
    said = [line for line in lines if line.strip()]
    plain = [line for line in said if not line[0].isspace()] or said  # a traceback's last line is not indented
    return f". Its last line: {one_line(plain[-1].strip()).rstrip('.')[:_MOST_CHARACTERS]}" if plain else ""


def unhealthy(instance_name: str, cause: str) -> str:
    """The error text for everything that a dead stub leaves undone."""
    text = f"Stub process '{instance_name}' is not healthy."
    return f"{text} The process {cause}." if cause else text
