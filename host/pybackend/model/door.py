"""The door that models use to have other models run: the same one as for every client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.model.model import Model


@dataclass(frozen=True, slots=True)
class Absence:
    """Why no version of a model serves.

    Attributes:
        known: False if there is no such model, or several.
        on_purpose: True if it was unloaded.
        reason: for people; may be empty.
    """

    known: bool
    on_purpose: bool
    reason: str


class ModelDoor(Protocol):
    """Finds models, and takes requests to them."""

    def find(self, name: str, version: str = "") -> Model:
        """The version that would answer a request now; ``""`` for the newest.

        Raises:
            InferenceError: there is none.
        """

    def absence(self, name: str) -> Absence:
        """Why :meth:`find` finds no version of a model."""

    def submit(self, model: Model, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Hold a request against the model's signature and queue it.

        Raises:
            InferenceError: it is not taken, and its memory stays the caller's.
        """

    def on_queued(self) -> None:
        """A model that waits for an ensemble now waits for something else: whether it waits for itself is to be seen."""
