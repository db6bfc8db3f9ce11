"""The engine's door, as models get it that have others run: every request is validated there like a client's."""

from __future__ import annotations

import asyncio

from pybackend.engine import InferenceEngine
from pybackend.frontend.bls.services import ModelServices
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.model.door import Absence
from pybackend.model.model import Model
from pybackend.protocol.validation import validate


class InnerDoor:
    """See :class:`pybackend.model.door.ModelDoor`. It serves from :meth:`open` on.

    Args:
        services: knows which models wait for which.
    """

    def __init__(self, services: ModelServices) -> None:
        self._services = services
        self._engine: InferenceEngine | None = None
        self._checks = False

    def open(self, engine: InferenceEngine) -> None:
        """Take requests to this engine."""
        self._engine = engine

    def find(self, name: str, version: str = "") -> Model:
        """The version that would answer a request now.

        Raises:
            InferenceError: there is none.
        """
        assert self._engine is not None
        return self._engine.model(name, version)

    def absence(self, name: str) -> Absence:
        """Why no version of a model serves."""
        assert self._engine is not None
        return self._engine.repository.absence(name)

    def submit(self, model: Model, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Hold a request against the model's signature and queue it.

        Raises:
            InferenceError: it is not taken, and its memory stays the caller's.
        """
        assert self._engine is not None
        validate(request, model.signature)
        return self._engine.submit(model, request, on_response)

    def on_queued(self) -> None:
        """A model that waits for an ensemble now waits for something else: whether it waits for itself is to be seen."""
        if not self._checks:
            self._checks = True
            asyncio.get_running_loop().call_soon(self._check)  # when schedulers have handed out what they can

    def _check(self) -> None:
        self._checks = False
        self._services.check_cycles()
