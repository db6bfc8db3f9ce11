"""Responses in the order of their requests, whoever is ready first."""

from __future__ import annotations

import logging
from collections import deque

from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse, OnResponse

log = logging.getLogger(__name__)


class _Turn:
    """One request's place in the order, and its responses that may not leave yet."""

    __slots__ = ("deliver", "responses")

    def __init__(self, deliver: OnResponse) -> None:
        self.deliver = deliver
        self.responses: deque[InferenceResponse] = deque()


class OrderedDelivery:
    """Stands between requests and those who wait for them."""

    def __init__(self) -> None:
        self._turns: deque[_Turn] = deque()

    def add(self, pending: PendingRequest) -> None:
        """Let this request's responses leave after those of all that were added before."""
        turn = _Turn(pending.on_response)
        self._turns.append(turn)

        def on_response(response: InferenceResponse) -> None:
            turn.responses.append(response)
            self._deliver()

        pending.on_response = on_response

    def _deliver(self) -> None:
        while self._turns and self._turns[0].responses:
            turn = self._turns[0]
            response = turn.responses.popleft()
            if response.final:
                self._turns.popleft()
            try:
                turn.deliver(response)
            except Exception:  # another request's receiver must not cost this one its answer
                log.exception("the receiver of a response of model '%s' failed", response.model_name)
                response.release()
