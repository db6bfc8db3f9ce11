"""The engine's interface for models that run other models: requests are validated like those of clients."""

from __future__ import annotations

import asyncio

from pybackend.calls.services import ModelServices
from pybackend.engine.engine import InferenceEngine
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.validation import Checked, validate
from pybackend.model.door import Absence
from pybackend.model.model import Model


class InnerDoor:
    """See :class:`pybackend.model.door.ModelDoor`. It serves once :meth:`open` was called.

    Args:
        services: knows which models wait for each other.
    """

    def __init__(self, services: ModelServices) -> None:
        self._services = services
        self._engine: InferenceEngine | None = None
        self._checks = False

    def open(self, engine: InferenceEngine) -> None:
        """Forward requests to this engine."""
        self._engine = engine

    def find(self, name: str, version: str = "", home: str = "") -> Model:
        """The version that stands for a model; see :meth:`ModelDoor.find`.

        Raises:
            InferenceError: there is no such version.
        """
        assert self._engine is not None
        repository = self._engine.repository
        return repository.representative(repository.names.known(name, home), version)

    def absence(self, name: str, home: str = "") -> Absence:
        """The reason why no version of a model serves."""
        assert self._engine is not None
        return self._engine.repository.absence(name, home)

    def submit(
        self,
        model: Model,
        request: InferenceRequest,
        on_response: OnResponse,
        any_version: bool,
        checked: Checked = Checked.NOTHING,
    ) -> PendingRequest:
        """Validate a request against the model's signature and queue it; see :meth:`ModelDoor.submit`.

        Raises:
            InferenceError: the request is refused, and its memory remains the caller's.
        """
        assert self._engine is not None
        if checked is not Checked.ALL:
            validate(request, model.signature)
        if model.traffic is None or not any_version:
            return self._engine.submit(model, request, on_response)
        return model.traffic.redirect(self._engine.submit, model, request, on_response)

    def on_queued(self) -> None:
        """A model that waits for an ensemble now waits for something else: check whether it waits for itself."""
        if not self._checks:
            self._checks = True
            asyncio.get_running_loop().call_soon(self._check)  # after schedulers have dispatched everything they can

    def _check(self) -> None:
        self._checks = False
        self._services.check_cycles()
