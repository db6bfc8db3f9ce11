"""How the requests of one version end: each is answered and counted once."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pybackend.errors import InferenceError
from pybackend.inference.pending import CANCELLED, PendingRequest, ResponsePath, failure, to_sender
from pybackend.inference.response import InferenceResponse
from pybackend.model.model import Model
from pybackend.model.statistics import FailureReason


class RequestOutcomes(ABC):
    """Has the requests of one version executed, and answers them."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self.version = model.version
        self.statistics = model.statistics
        self._open_requests = model.open_requests
        self._deliver: ResponsePath = to_sender
        """The path for all responses, to the front end's ``on_response``. ``response_path`` and the scheduler make it
        before requests are accepted."""

    @abstractmethod
    def enqueue(self, pending: PendingRequest) -> None:
        """Have a request executed that the cache does not answer; raises InferenceError if it is refused."""

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

    def on_refused(
        self, batch: Sequence[PendingRequest], error: InferenceError, reason: FailureReason = FailureReason.REJECTED
    ) -> None:
        """Answer accepted requests that will not be executed after all, or were lost while they were."""
        for pending in batch:
            pending.request.release()
            if pending.is_filler:
                continue
            self.statistics.add_failure(reason, pending.request.queued_ns)
            self._answer(pending, failure(pending.request, self.version, error))
