"""Tracks a version's unanswered requests, for which unloading waits."""

import asyncio
from collections.abc import Callable

from pybackend.inference.request import InferenceRequest


class OpenRequests:
    """Counts open requests and holds, and wakes waiters when none are left."""

    def __init__(self) -> None:
        self.count = 0  # requests without a final response
        self.holds = 0  # calls of :meth:`hold` that have not ended
        self._inner = 0  # those that other models sent
        self._drain_is_over = False
        self._idle: asyncio.Event | None = None

    def enter(self, request: InferenceRequest) -> None:
        self.count += 1
        if request.is_inner:
            self._inner += 1

    def leave(self, request: InferenceRequest) -> None:
        """Stop counting a request whose final response is sent in this loop turn."""
        self.count -= 1
        if request.is_inner:
            self._inner -= 1
        if self._idle is not None:
            self.wake()

    def hold(self) -> Callable[[], None]:
        """Keep the version, while it is being unloaded, able to answer other models' requests.

        The returned function ends that; call it once.
        """
        self.holds += 1
        return self._end_hold

    def _end_hold(self) -> None:
        self.holds -= 1
        self.wake()

    def admits(self, request: InferenceRequest) -> bool:
        """True if this request should be accepted although the version no longer serves: a hold is in place."""
        return request.is_inner and self.holds > 0 and not self._drain_is_over

    async def clients_answered_within(self, timeout_s: float | None) -> bool:
        """Wait until all clients' requests are answered; False on timeout."""
        return await self._until(lambda: self.count == self._inner, timeout_s)

    async def drained_within(self, timeout_s: float | None, rest_is_over: Callable[[], bool] = lambda: True) -> bool:
        """Wait until every request is answered and nobody holds the version; False on timeout.

        With an additional condition, call :meth:`wake` when it may have become true.
        """
        drained = await self._until(lambda: not self.count and not self.holds and rest_is_over(), timeout_s)
        self._drain_is_over = True
        return drained

    async def _until(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not done():
                    self._idle = self._idle or asyncio.Event()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        """Let waiters check their conditions."""
        if self._idle is not None and not (self.count and self.count > self._inner):
            self._idle.set()
            self._idle = None
