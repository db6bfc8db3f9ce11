"""The single door: every request, whoever sends it, enters here; front ends know nothing behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from enum import Enum

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.queued_bytes import QueuedBytes
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.model.model import Model
from pybackend.repository.file_override import FileContents
from pybackend.repository.repository import ModelRepository

log = logging.getLogger(__name__)


class EngineState(Enum):
    """Where the server is in its life."""

    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"


class InferenceEngine:
    """Takes requests for the models of a repository."""

    def __init__(
        self,
        repository: ModelRepository,
        *,
        server_id: str,
        strict_readiness: bool,
        queued_bytes: QueuedBytes | None = None,
    ) -> None:
        self.server_id = server_id
        self.state = EngineState.STARTING
        self._repository = repository
        self._strict_readiness = strict_readiness
        self._queued = queued_bytes

    @property
    def repository(self) -> ModelRepository:
        """The models, for whoever reports on them."""
        return self._repository

    async def is_ready(self) -> bool:
        """True if clients should send requests: started and, if readiness is strict, every model serves and says so."""
        if self.state is not EngineState.READY:
            return False
        if not self._strict_readiness:
            return True
        if not self._repository.all_ready:
            return False
        asked = [model for model in self._repository.models() if model.has_is_ready]
        verdicts = await asyncio.gather(*(self.is_model_ready(model) for model in asked))
        return all(verdicts)

    async def is_model_ready(self, model: Model) -> bool:
        """True if a model version takes requests, all its instances are alive, and its ``is_ready`` agrees."""
        reason = await model.not_ready_reason()
        if reason:
            log.debug("Model '%s' version %s is not ready: %s", model.name, model.version, reason)
        return not reason

    async def is_ready_by_name(self, name: str, version: str = "") -> bool:
        """True if that version is ready, or any for ``""``; see :meth:`is_model_ready`.

        Raises:
            InferenceError: INVALID_ARG, there is no such model or that is no version.
        """
        for model in reversed(self._repository.known_versions(name, version)):
            if await self.is_model_ready(model):
                return True
        return False

    def model(self, name: str, version: str = "") -> Model:
        """The model version that would answer a request now; hold the request against its signature before submitting.

        Raises:
            InferenceError: there is none.
        """
        return self._repository.find(name, version)

    async def load_model(
        self, name: str, config_json: str | None = None, files: FileContents | None = None, *, asked_by: str = ""
    ) -> None:
        """Load a model or bring it up to date; see :meth:`ModelRepository.load_model`.

        Raises:
            InferenceError: why it is not loaded.
        """
        self._check_started()
        await self._repository.load_model(name, config_json, files, asked_by=asked_by)

    async def unload_model(self, name: str, *, unload_dependents: bool = False, asked_by: str = "") -> None:
        """Begin to unload a model; see :meth:`ModelRepository.unload_model`.

        Raises:
            InferenceError: why it is not unloaded.
        """
        self._check_started()
        await self._repository.unload_model(name, unload_dependents=unload_dependents, asked_by=asked_by)

    def _check_started(self) -> None:
        if self.state is EngineState.STARTING:
            raise InferenceError(
                "the server is still starting: models can be loaded and unloaded once all that it loads at start are "
                "loaded, so not from their 'initialize'",
                ErrorCode.UNAVAILABLE,
            )

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
        if self.state is EngineState.EXITING and not request.is_inner:
            raise InferenceError(
                f"[request id: {request.id or '<id_unknown>'}] Server is stopping, scheduler for model has stopped "
                "accepting new inference requests",
                ErrorCode.UNAVAILABLE,
            )
        if self._queued is None or request.is_inner:
            return model.submit(request, on_response)
        nbytes = self._queued.weigh(request)
        pending = model.submit(request, self._queued.until_answered(nbytes, on_response))
        self._queued.add(nbytes)
        return pending

    async def infer(
        self,
        model: Model,
        request: InferenceRequest,
        departure: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> InferenceResponse:
        """Submit and wait for the answer, which the caller releases; for tests, tools and slow front ends.

        Args:
            model: from :meth:`model`.
            request: as for :meth:`submit`.
            departure: waits until nobody is interested in the answer any more: then the request is cancelled.

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
        leaving = None if departure is None else asyncio.create_task(departure())
        if leaving is not None:
            leaving.add_done_callback(lambda _leaving: pending.cancel())
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.cancelled():
                pending.cancel()
            else:
                answer.result().release()  # it came in the same turn
            raise
        finally:
            if leaving is not None:
                leaving.cancel()
