"""A request that the engine has taken and not yet answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse


class Runner(Protocol):
    """Where a request runs."""

    def cancel(self, pending: PendingRequest) -> None:
        """Let the model know that nobody waits for this request's responses."""

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Keep the model from sending more responses to this request, or let it go on."""


class PendingRequest:
    """A request, where its answers go, and the handle its sender may cancel, pause and resume it by.

    Attributes:
        request: what was asked.
        on_response: takes every response, and must release it.
        answered: True once the final response is out; the request is nobody's business any more.
        cancelled: True once its sender has lost interest.
        runner: where it may be running; None while it waits.
        execution: number of its execution there.
        index: its place in that execution.
        succeeded: False once a response was an error.
        losses: how many stubs died that it had been sent to and that had not begun it.
        paused: True while its sender takes no responses.
        is_filler: it only fills a place in a batch: nobody waits for it, and nobody counts it.
    """

    __slots__ = (
        "_on_cancel",
        "answered",
        "cancelled",
        "execution",
        "index",
        "is_filler",
        "losses",
        "on_response",
        "paused",
        "request",
        "runner",
        "succeeded",
    )

    def __init__(
        self, request: InferenceRequest, on_response: OnResponse, on_cancel: Callable[[PendingRequest], None]
    ) -> None:
        self.request = request
        self.on_response = on_response
        self._on_cancel = on_cancel
        self.answered = False
        self.cancelled = False
        self.runner: Runner | None = None
        self.execution = 0
        self.index = 0
        self.succeeded = True
        self.losses = 0
        self.paused = False
        self.is_filler = False

    def cancel(self) -> None:
        """The sender lost interest: a request that still waits is dropped and answered CANCELLED, a running one is told."""
        if self.answered or self.cancelled:
            return
        self.cancelled = True
        if self.runner is None:
            self._on_cancel(self)
        else:
            self.runner.cancel(self)

    def pause(self) -> None:
        """Take no more responses for now: the model waits before it sends one. Some may be on their way.

        It does not wait with the final response, which is the last that has to be kept.
        """
        if self.paused or self.answered or self.cancelled:
            return
        self.paused = True
        if self.runner is not None:
            self.runner.flow(self, paused=True)

    def resume(self) -> None:
        """Take responses again."""
        if self.paused:
            self.paused = False
            if self.runner is not None:
                self.runner.flow(self, paused=False)


def failure(request: InferenceRequest, version: str, error: InferenceError) -> InferenceResponse:
    """The final response that tells a request's error."""
    return InferenceResponse(request.model_name, version, request.id, error=error)


CANCELLED = InferenceError("the client cancelled the request", ErrorCode.CANCELLED)
