"""Ends requests: each is answered once, counted by its outcome, and its memory is released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pybackend.errors import InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, failure
from pybackend.inference.response import InferenceResponse
from pybackend.inference.response_path import ResponsePath, to_sender
from pybackend.model.open_requests import OpenRequests
from pybackend.model.statistics import FailureReason, ModelStatistics


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
