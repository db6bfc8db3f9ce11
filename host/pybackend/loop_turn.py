"""Callbacks deferred until a stub's messages are handled, or else until the event loop's next iteration.

A request passes the scheduler and a socket, and a call between models passes them twice. Without this, each would wait
for the loop to poll for other events first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakValueDictionary


class LoopTurn:
    """Defers callbacks: while messages of a stub are handled, until right after them.

    Otherwise to the loop's next iteration.

    Callbacks that these defer follow at once: what one iteration's requests lead to leaves in the next.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handling = False
        self._callbacks: deque[Callable[[], None]] = deque()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this once the current message is handled, or in the loop's next iteration if no message is being handled."""
        if not self._callbacks and not self._handling:
            self._loop.call_soon(self._run)
        self._callbacks.append(callback)

    def _run(self) -> None:
        if self.begin():
            self.end()

    def begin(self) -> bool:
        """Mark the start of message handling. True if the caller must call :meth:`end` afterwards."""
        if self._handling:
            return False
        self._handling = True
        return True

    def end(self) -> None:
        """Mark the end of message handling and run the deferred callbacks."""
        try:
            while self._callbacks:
                self._callbacks.popleft()()
        finally:
            self._handling = False
            if self._callbacks:  # after a failed callback, the others still run
                self._loop.call_soon(self._run)


_turns: WeakValueDictionary[int, LoopTurn] = WeakValueDictionary()
"""By the loop's id: a turn keeps its loop alive, and its users keep the turn. A dictionary of loops would keep both for
ever."""


def loop_turn_of(loop: asyncio.AbstractEventLoop) -> LoopTurn:
    """The turn of an event loop."""
    turn = _turns.get(id(loop))
    if turn is None:
        turn = _turns[id(loop)] = LoopTurn(loop)
    return turn
