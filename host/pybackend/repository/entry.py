"""One name in the repository: its known versions and their states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pybackend.model.model import UNLOADED, Model, ModelState
from pybackend.repository.candidate import Candidate


@dataclass(frozen=True)
class ModelStatus:
    """One row of the table of models, and of the repository index.

    Attributes:
        name: the model's name.
        version: decimal; if it has none, ``-`` in the table and ``""`` in the index.
        state: the stage of its life; ``""`` for a model that was never loaded.
        reason: why it is not available, ``""`` if it is.
    """

    name: str
    version: str
    state: str
    reason: str = ""

    @property
    def status(self) -> str:
        """State and reason in one text."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    @property
    def is_ready(self) -> bool:
        """True if the version accepts requests."""
        return self.state == ModelState.READY.value


@dataclass
class ModelEntry:
    """A name in the repository.

    Attributes:
        name: the model's name.
        versions: by number, including those that failed to load or were unloaded.
        origins: by number, the candidate that each version was loaded from.
        reason: the reason why there are no versions, e.g. a configuration error.
        newest_first: the same versions, highest number first.
        as_part: True if it was loaded only as a part of ensembles.
    """

    name: str
    versions: Mapping[int, Model] = field(default_factory=dict)
    origins: Mapping[int, Candidate] = field(default_factory=dict)
    reason: str = ""
    newest_first: tuple[Model, ...] = ()
    as_part: bool = False

    def set_versions(self, models: Mapping[int, Model], origins: Mapping[int, Candidate]) -> None:
        """Replace the versions."""
        self.versions = dict(sorted(models.items()))
        self.origins = origins
        self.reason = ""
        self.newest_first = tuple(reversed(self.versions.values()))

    def ready_versions(self) -> list[Model]:
        """Versions that accept requests, ascending."""
        return [model for model in self.versions.values() if model.state is ModelState.READY]

    @property
    def is_ready(self) -> bool:
        """True if every version serves, or was deliberately unloaded."""
        return bool(self.versions) and all(model.is_ready or model.is_off for model in self.versions.values())

    @property
    def is_loaded(self) -> bool:
        """True if there are versions and all of them accept requests."""
        return bool(self.versions) and len(self.ready_versions()) == len(self.versions)

    @property
    def is_over(self) -> bool:
        """True if no version serves, or will without another load."""
        return all(model.state is ModelState.UNAVAILABLE for model in self.versions.values())

    def why_not_available(self) -> str:
        """The reason why no version of a model serves, for clients, to be appended to a sentence."""
        reasons = [self.reason] if self.reason else [model.reason for model in self.newest_first]
        first = next((reason for reason in reasons if reason and reason != UNLOADED), "")
        return f". It failed: {first.splitlines()[0]} (the server's log has the rest)" if first else ""

    def forget_failures(self) -> None:
        """Remove versions that could not be loaded."""
        known = {
            version: model
            for version, model in self.versions.items()
            if model.state is not ModelState.UNAVAILABLE or model.reason == UNLOADED
        }
        self.set_versions(known, self.origins)

    def table(self) -> list[ModelStatus]:
        """The state of each version; one row if there is none."""
        return self._rows("-")

    def index(self) -> list[ModelStatus]:
        """The same for the repository index."""
        return self._rows("")

    def _rows(self, no_version: str) -> list[ModelStatus]:
        if not self.versions:
            return [ModelStatus(self.name, no_version, ModelState.UNAVAILABLE.value, self.reason)]
        return [
            ModelStatus(self.name, str(version), model.state.value, model.reason)
            for version, model in self.versions.items()
        ]
