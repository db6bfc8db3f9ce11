"""Questions of the engine's process that a front end answers by number."""

import asyncio
from collections.abc import Callable
from itertools import count

from pybackend_wire.errors import RemoteProtocolError

MOST_LOOKS = 10
"""A front end that has answered so often, and not this question, does not mean to."""


class OpenQuestions:
    """Open questions of one kind, and what follows each answer.

    ``fault`` is that of a front end which never gives it, as a clause.
    """

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self._numbers = count(1)
        self._open: dict[int, tuple[Callable[[], None], int]] = {}

    def ask(self, then: Callable[[], None]) -> int:
        """The number of a new question."""
        number = next(self._numbers)
        self._open[number] = then, 0
        return number

    async def answer(self, post: Callable[[int], object]) -> None:
        """Ask, by a function that gets the number of the question, and wait for the answer, or until the front end is gone."""
        answered = asyncio.Event()
        post(self.ask(answered.set))
        await answered.wait()

    def __bool__(self) -> bool:
        """True while one is open."""
        return bool(self._open)

    def answered(self, number: int) -> None:
        """Raises RemoteProtocolError if no such question is open."""
        if number not in self._open:
            raise RemoteProtocolError("an answer without a question")
        then, _ = self._open.pop(number)
        then()

    def alive(self) -> None:
        """The front end has answered something else. Raises RemoteProtocolError if it has done so too often."""
        self._open = {number: (then, looks + 1) for number, (then, looks) in self._open.items()}
        if any(looks > MOST_LOOKS for _, looks in self._open.values()):
            raise RemoteProtocolError(self._fault)

    def end(self) -> None:
        """The front end is gone, and will answer nothing."""
        unanswered, self._open = self._open, {}
        for then, _ in unanswered.values():
            then()
