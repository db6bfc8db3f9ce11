"""The interface through which models run other models, with the same rules as for clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.validation import Checked
from pybackend.model.model import Model


@dataclass(frozen=True, slots=True)
class Absence:
    """The reason why no version of a model serves.

    Attributes:
        known: False if there is no such model, or several.
        on_purpose: True if it was unloaded.
        reason: human-readable; may be empty.
    """

    known: bool
    on_purpose: bool
    reason: str


class ModelRouter(Protocol):
    """Finds models, and accepts requests to them."""

    def find(self, name: str, version: str = "", home: str = "") -> Model:
        """The version that stands for a model.

        Args:
            name: the model's name.
            version: decimal; ``""`` selects one that answers requests.
            home: a namespace whose model of this name comes before others.

        Raises:
            InferenceError: there is no such version.
        """

    def absence(self, name: str, home: str = "") -> Absence:
        """The reason why :meth:`find` finds no version of a model."""

    def submit(
        self,
        model: Model,
        request: InferenceRequest,
        on_response: OnResponse,
        any_version: bool,
        checked: Checked = Checked.NOTHING,
    ) -> PendingRequest:
        """Validate a request against the model's signature and queue it.

        Args:
            model: the version.
            request: the request.
            on_response: gets the responses.
            any_version: the request names no version, so another one may answer.
            checked: the validation against the version's signature that was done before.

        Raises:
            InferenceError: the request is refused, and its memory remains the caller's.
        """

    def on_queued(self) -> None:
        """A model that waits for an ensemble now waits for something else: check whether it waits for itself."""
