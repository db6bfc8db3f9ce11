"""The single door: every request, whoever sends it, enters here; front ends know nothing behind it."""

from __future__ import annotations

import asyncio
from enum import Enum

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.model.model import Model
from pybackend.repository.repository import ModelRepository


class EngineState(Enum):
    """Where the server is in its life."""

    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"


class InferenceEngine:
    """Takes requests for the models of a repository."""

    def __init__(self, repository: ModelRepository, *, server_id: str, strict_readiness: bool) -> None:
        self.server_id = server_id
        self.state = EngineState.STARTING
        self._repository = repository
        self._strict_readiness = strict_readiness

    @property
    def repository(self) -> ModelRepository:
        """The models, for whoever reports on them."""
        return self._repository

    @property
    def is_ready(self) -> bool:
        """True if clients should send requests: started and, if readiness is strict, every model serves."""
        return self.state is EngineState.READY and (not self._strict_readiness or self._repository.all_ready)

    def model(self, name: str, version: str = "") -> Model:
        """The model version that would answer a request now; hold the request against its signature before submitting.

        Raises:
            InferenceError: there is none.
        """
        return self._repository.find(name, version)

    def submit(self, model: Model, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a request that was validated against ``model``.

        Args:
            model: from :meth:`model`.
            request: the engine owns it, and its memory, if this returns.
            on_response: called on the event loop, never from inside this call; the last response has ``final`` set.

        Returns:
            The handle to cancel the request by.

        Raises:
            InferenceError: the request is not taken, and stays the caller's.
        """
        if self.state is EngineState.EXITING:
            raise InferenceError(
                f"[request id: {request.id or '<id_unknown>'}] Server is stopping, scheduler for model has stopped "
                "accepting new inference requests",
                ErrorCode.UNAVAILABLE,
            )
        return model.submit(request, on_response)

    async def infer(self, model: Model, request: InferenceRequest) -> InferenceResponse:
        """Submit and wait for the answer, which the caller releases; for tests, tools and slow front ends.

        Raises:
            InferenceError: the request is not taken.
        """
        answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()

        def on_response(response: InferenceResponse) -> None:
            if answer.done():
                response.release()  # the waiter was cancelled in the turn in which the answer came
            else:
                answer.set_result(response)

        pending = self.submit(model, request, on_response)
        try:
            return await answer
        except asyncio.CancelledError:
            pending.cancel()
            raise
