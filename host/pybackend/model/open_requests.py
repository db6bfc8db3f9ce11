"""Tracks a version's unanswered requests, for which unloading waits, and ends them: each is answered and counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pybackend.errors import InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, ResponsePath, failure, to_sender
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.model.statistics import FailureReason, ModelStatistics


def _nothing_else() -> bool:
    return True


class OpenRequests:
    """Counts open requests and holds, and wakes waiters when none are left.

    Attributes:
        count: requests without a final response.
        holds: calls of :meth:`hold` that have not ended.
    """

    def __init__(self) -> None:
        self.count = 0
        self.holds = 0
        self._of_clients = 0
        self._drain_is_over = False
        self._idle: asyncio.Event | None = None

    def enter(self, request: InferenceRequest) -> None:
        """Count an accepted request."""
        self.count += 1
        if not request.is_inner:
            self._of_clients += 1

    def leave(self, request: InferenceRequest) -> None:
        """Stop counting a request whose final response is sent in this loop turn."""
        self.count -= 1
        if not request.is_inner:
            self._of_clients -= 1
        if self._idle is not None:
            self.wake()

    def hold(self) -> Callable[[], None]:
        """Keep the version, while it is being unloaded, able to answer other models' requests.

        Returns:
            A function that ends the hold; call it once.
        """
        self.holds += 1
        return self._let_go

    def _let_go(self) -> None:
        self.holds -= 1
        self.wake()

    def admits(self, request: InferenceRequest) -> bool:
        """True if this request should be accepted although the version no longer serves: a hold is in place."""
        return request.is_inner and self.holds > 0 and not self._drain_is_over

    async def clients_answered_within(self, timeout_s: float | None) -> bool:
        """Wait until all clients' requests are answered; False on timeout."""
        return await self._until(lambda: not self._of_clients, timeout_s)

    async def drained_within(self, timeout_s: float | None, rest_is_over: Callable[[], bool] = _nothing_else) -> bool:
        """Wait until every request is answered and nobody holds the version; False on timeout.

        Args:
            timeout_s: the time limit, None for no limit.
            rest_is_over: an additional condition; call :meth:`wake` when it may have become true.
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
        if self._idle is not None and not (self.count and self._of_clients):
            self._idle.set()
            self._idle = None


class RequestOutcomes:
    """Answers the requests of one version.

    Attributes:
        name: the model's name.
        version: its decimal version.
        statistics: the version's counters.
    """

    def __init__(self, name: str, version: str, statistics: ModelStatistics, open_requests: OpenRequests) -> None:
        self.name = name
        self.version = version
        self.statistics = statistics
        self._open_requests = open_requests
        self._deliver: ResponsePath = to_sender
        """The path for all responses; composed before requests are accepted, then constant."""

    def _answer(self, pending: PendingRequest, response: InferenceResponse) -> None:
        self._open_requests.leave(pending.request)
        pending.answered = True
        if pending.paused:
            pending.resume()  # the model need not remember that it was paused
        self._deliver(pending, response)

    def on_hit(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """A request was answered from the cache."""
        pending.request.release()
        self.statistics.add_hit(pending.request.queued_ns)
        self._answer(pending, response)

    def on_dropped(self, pending: PendingRequest, error: InferenceError = CANCELLED) -> None:
        """A request was cancelled before it was executed: its sender is answered on the next loop turn."""
        pending.answered, pending.succeeded = True, False
        self.statistics.add_failure(FailureReason.CANCELED, pending.request.queued_ns)
        pending.request.release()
        response = failure(pending.request, self.version, error)
        asyncio.get_running_loop().call_soon(self._answer, pending, response)

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """Answer accepted requests that will not be executed after all."""
        self._fail(batch, error, FailureReason.REJECTED)

    def _fail(self, batch: Sequence[PendingRequest], error: InferenceError, reason: FailureReason) -> None:
        for pending in batch:
            pending.request.release()
            if pending.is_filler:
                continue
            self.statistics.add_failure(reason, pending.request.queued_ns)
            self._answer(pending, failure(pending.request, self.version, error))
