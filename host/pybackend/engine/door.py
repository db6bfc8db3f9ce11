"""The engine as ports see it: the one of their process, or that of a separate front end, which passes requests on to another process."""

from collections.abc import Mapping
from typing import Protocol

from pybackend.engine.admission import ClientAdmission, Sender
from pybackend.engine.answers import AnswerCounts, Refusals
from pybackend.inference.region import FindRegion
from pybackend.observability.tracing.tracer import Tracer


class Door(Protocol):
    """Accepts the requests of clients."""

    @property
    def answers(self) -> Mapping[str, AnswerCounts]:
        """Counts of all answers, by the protocol of the sender."""

    @property
    def refusals(self) -> Refusals:
        """Counts requests that no model accepted."""

    @property
    def find_region(self) -> FindRegion:
        """Shared memory that clients have registered."""

    @property
    def tracer(self) -> Tracer:
        """Chooses the requests that are traced."""

    def open(self, name: str, version: str, sender: Sender, /) -> ClientAdmission:
        """Open an admission to the version that would answer a request now. Raises InferenceError: there is none."""
