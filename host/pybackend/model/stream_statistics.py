"""Counts the responses of a decoupled model by their place in the stream."""

from __future__ import annotations

import time

from pybackend.errors import ErrorCode
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.response_path import ResponsePath
from pybackend.instance.execution import Execution
from pybackend.model.statistics import ResponseFigures

MOST_PLACES = 1000
"""Responses beyond this place in their stream have no figures: models choose the number of responses."""


class _Stream:
    """One request's responses so far: their number, and the time of the last one."""

    __slots__ = ("count", "last_ns")

    def __init__(self, began_ns: int) -> None:
        self.count = 0
        self.last_ns = began_ns


class StreamStatistics:
    """A stage of the response path; see :mod:`pybackend.inference.response_path`.

    Args:
        figures: the counters to fill, by the response's place.
        pass_on: receives the responses.
    """

    def __init__(self, figures: list[ResponseFigures], pass_on: ResponsePath) -> None:
        self._figures = figures
        self._pass_on = pass_on
        self._streams: dict[PendingRequest, _Stream] = {}

    def begin(self, pending: PendingRequest, execution: Execution) -> None:
        """Note the start of a request's execution, unless it is known; call this before a response is passed on."""
        if pending not in self._streams:
            self._streams[pending] = _Stream(execution.times.infer_start_ns or execution.sent_ns)

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Count a response that the model sent, and pass it on."""
        stream = self._streams.get(pending)
        if stream is None:
            self._pass_on(pending, response)  # the server's own answer to a request that was not executed
            return
        error, empty, final = response.error, response.empty, response.final
        arrived_ns = time.monotonic_ns()
        self._pass_on(pending, response)
        if final:
            del self._streams[pending]
        place, began_ns = stream.count, stream.last_ns
        stream.count, stream.last_ns = place + 1, arrived_ns
        if place >= MOST_PLACES:
            return
        if place >= len(self._figures):
            self._figures.append(ResponseFigures())
        figures = self._figures[place]
        computed_ns = arrived_ns - began_ns
        if error is not None:
            cancelled = pending.cancelled and error.code is ErrorCode.CANCELLED
            (figures.cancel if cancelled else figures.fail).add(computed_ns)
        elif empty:
            (figures.cancel if pending.cancelled else figures.empty_response).add(computed_ns)
        else:
            passed_ns = time.monotonic_ns() - arrived_ns
            figures.compute_infer.add(computed_ns)
            figures.compute_output.add(passed_ns)
            figures.success.add(computed_ns + passed_ns)
