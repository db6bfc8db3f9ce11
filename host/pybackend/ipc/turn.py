"""What follows from a stub's message is done when all of it is handled, not a turn of the event loop later.

A call from one model to another passes the scheduler and a socket; each would else wait for the loop to look for other
events first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary


class Turn:
    """One event loop's work that is put off until later in the same turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handling = False
        self._callbacks: deque[Callable[[], None]] = deque()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this when the message that is being handled is handled; in the loop's next turn if there is none."""
        if self._handling:
            self._callbacks.append(callback)
        else:
            self._loop.call_soon(callback)

    def begin(self) -> bool:
        """Messages are about to be handled; True if :meth:`end` is to be called afterwards."""
        if self._handling:
            return False
        self._handling = True
        return True

    def end(self) -> None:
        """All is handled: do what was put off."""
        try:
            while self._callbacks:
                self._callbacks.popleft()()
        finally:
            self._handling = False
            while self._callbacks:  # one of them failed, which is not the others' fault
                self._loop.call_soon(self._callbacks.popleft())


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """The turn of an event loop."""
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = Turn(loop)
    return turn
