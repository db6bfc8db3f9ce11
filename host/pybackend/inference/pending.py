"""A request that the engine has taken and not yet answered."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse


class PendingRequest:
    """A request, where its answer goes, and the handle its sender may cancel it by.

    Attributes:
        request: what was asked.
        on_response: takes the final response, and must release it.
        answered: True once the final response is out; the request is nobody's business any more.
        begun: True while it may be running in a stub.
        losses: how many stubs died that it had been sent to and that had not begun it.
    """

    __slots__ = ("_on_cancel", "answered", "begun", "losses", "on_response", "request")

    def __init__(
        self, request: InferenceRequest, on_response: OnResponse, on_cancel: Callable[[PendingRequest], None]
    ) -> None:
        self.request = request
        self.on_response = on_response
        self._on_cancel = on_cancel
        self.answered = False
        self.begun = False
        self.losses = 0

    def cancel(self) -> None:
        """The sender lost interest: a request that still waits is dropped and answered CANCELLED, a running one goes on."""
        if not self.answered and not self.begun:
            self._on_cancel(self)


def failure(request: InferenceRequest, version: str, error: InferenceError) -> InferenceResponse:
    """The final response that tells a request's error."""
    return InferenceResponse(request.model_name, version, request.id, error=error)


CANCELLED = InferenceError("the client cancelled the request", ErrorCode.CANCELLED)
