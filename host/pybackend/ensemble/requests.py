"""Handles an ensemble's requests: cache lookups, and runs through its steps."""

from __future__ import annotations

import time

from pybackend.ensemble.binding import EnsembleBinding
from pybackend.ensemble.run import EnsembleRun
from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.response_path import guarded
from pybackend.model.cached_answers import cached_answers
from pybackend.model.host import ModelHost
from pybackend.model.latencies import FirstResponses, LatencySummaries, first_response_bounds_ms
from pybackend.model.open_requests import OpenRequests
from pybackend.model.outcomes import RequestOutcomes
from pybackend.model.statistics import FailureReason, ModelStatistics
from pybackend.modelconfig.ensemble import most_inflight
from pybackend.modelconfig.schema import ModelConfig
from pybackend.modelconfig.signature import ModelSignature


class EnsembleRequests(RequestOutcomes):
    """Runs requests through the steps, and answers them.

    Args:
        name: the ensemble's name.
        version: its decimal version.
        statistics: the version's counters.
        open_requests: the version's open requests.
        config: the ensemble's configuration.
        host: the server.

    Attributes:
        answers: the cached answers, to be renewed whenever the parts change; None if requests are always run.
        signature: the ensemble's signature, as made by its current parts.
    """

    signature: ModelSignature

    def __init__(
        self,
        name: str,
        version: str,
        statistics: ModelStatistics,
        open_requests: OpenRequests,
        config: ModelConfig,
        host: ModelHost,
    ) -> None:
        super().__init__(name, version, statistics, open_requests)
        path = host.path_to_sender
        if host.metrics.summary_latencies:
            statistics.summaries = LatencySummaries()
        if host.metrics.histogram_latencies:
            first = statistics.first_responses = FirstResponses(first_response_bounds_ms(config))
            path = first.stage(path)
        self.answers, path = cached_answers(host.cache, config, b"", self, path)
        self._deliver = guarded(path)
        self._door = host.door
        self._most_inflight = most_inflight(config)
        self._runs: dict[EnsembleRun, EnsembleBinding] = {}
        self._looked_up: dict[PendingRequest, EnsembleBinding] = {}

    def run(self, pending: PendingRequest, binding: EnsembleBinding) -> None:
        """Run a request through its steps."""
        plan = binding.plan(pending.request.requested_outputs)
        run = EnsembleRun(self, self._door, plan, self._most_inflight, pending)
        self._runs[run] = binding
        run.start()

    def look_up(self, pending: PendingRequest, binding: EnsembleBinding) -> None:
        """Answer a request from the cache, or run it."""
        assert self.answers is not None
        self._looked_up[pending] = binding
        self.answers.submit(pending)

    def enqueue(self, pending: PendingRequest) -> None:
        """Run a request that the cache does not answer."""
        self.run(pending, self._looked_up.pop(pending))

    def on_hit(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """A request was answered from the cache."""
        self._looked_up.pop(pending).leave()
        super().on_hit(pending, response)

    def on_dropped(self, pending: PendingRequest, error: InferenceError = CANCELLED) -> None:
        """A request was cancelled before its lookup."""
        self._looked_up.pop(pending).leave()
        super().on_dropped(pending, error)

    def on_response(self, run: EnsembleRun, response: InferenceResponse) -> None:
        """A run has produced a response."""
        pending = run.pending
        pending.succeeded &= response.error is None
        if not response.final:
            self._deliver(pending, response)
            return
        if pending.succeeded:
            request = pending.request
            now_ns = time.monotonic_ns()
            self.statistics.add_pass(request.batch_size, now_ns - request.queued_ns, now_ns)
        else:
            reason = FailureReason.CANCELED if pending.cancelled else FailureReason.OTHER
            self.statistics.add_failure(reason, pending.request.queued_ns)
        self._answer(pending, response)

    def on_end(self, run: EnsembleRun) -> None:
        """A run has ended completely."""
        self._runs.pop(run).leave()
        self._open_requests.wake()

    @property
    def have_run(self) -> bool:
        """True if no step is running, not even for an abandoned request."""
        return not self._runs

    async def end(self) -> None:
        """The ensemble is being unloaded: wait for cache lookups, and end all remaining runs."""
        if self.answers is not None:
            await self.answers.finish()
        for run in list(self._runs):
            what = f"the request to model '{self.name}' was still running when it was unloaded"
            run.abort(InferenceError(what, ErrorCode.UNAVAILABLE))
