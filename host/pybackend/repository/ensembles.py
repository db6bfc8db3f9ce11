"""Tracks dependencies between ensembles and their parts while models are loaded and unloaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.model.ensemble.model import EnsembleModel
from pybackend.model.host import Absence
from pybackend.model.model import ModelState
from pybackend.modelconfig.ensemble import part_names_on_disk
from pybackend.repository.entry import ModelEntry
from pybackend.repository.layout import DUPLICATE_REASON
from pybackend.repository.names import ModelNames


class Ensembles:
    """The dependencies between models.

    Args:
        entries: all models by full name; always read in their current state.
    """

    def __init__(self, entries: Mapping[str, ModelEntry], config_name: str, names: ModelNames) -> None:
        self._entries = entries
        self._names = names
        self._config_name = config_name
        self._unreadable: dict[str, str] = {}

    # Parts

    def parts(self, name: str) -> frozenset[str]:
        """The models in a loaded ensemble; empty if there is no such ensemble."""
        return frozenset(
            self._names.part(part, model.namespace) for model in self._versions(name) for part in model.part_names
        )

    def lacking(self, parts: Sequence[str]) -> frozenset[str]:
        """The given models without a serving version."""
        return frozenset(part for part in parts if not self._is_served(part))

    def absence(self, name: str) -> Absence:
        """The reason why no version of a model serves."""
        entry = self._entries.get(name)
        if entry is None or entry.reason == DUPLICATE_REASON:
            return Absence(False, False, self._unreadable.get(name, ""))
        models = entry.versions.values()
        if not models:
            return Absence(True, False, entry.reason)
        unloaded = all(model.is_off or model.state is ModelState.UNLOADING for model in models)
        return Absence(True, unloaded, "".join(model.load_failure for model in models).strip())

    def note_failure(self, name: str, reason: str) -> None:
        """Record why a part could not be loaded, for parts without an entry that would give the reason."""
        self._unreadable[name] = reason

    def is_mere_part(self, name: str) -> bool:
        """True if a model was loaded only because ensembles needed it, and none of those remains."""
        entry = self._entries.get(name)
        return entry is not None and entry.as_part and not any(name in self.parts(other) for other in self._entries)

    def _is_served(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and bool(entry.ready_versions())

    def _versions(self, name: str) -> list[EnsembleModel]:
        """The versions of an ensemble that are not unloaded."""
        entry = self._entries.get(name)
        models = () if entry is None else entry.versions.values()
        return [model for model in models if isinstance(model, EnsembleModel) and not model.is_unloaded]

    # Changes

    def on_change(self, name: str) -> None:
        """Update dependent ensembles after a model's versions changed: they may switch versions, stop or restart."""
        self._unreadable.pop(name, None)
        changed = deque([name])
        while changed:
            part = changed.popleft()
            for other in self._entries:
                affected = [
                    model
                    for model in self._versions(other)
                    if any(self._names.may_mean(name, part) for name in model.part_names)
                ]
                if [model for model in affected if model.revise()] and other not in changed:
                    changed.append(other)

    # Cycles

    def check(self, ensemble: str, parts: Sequence[str], directories: Mapping[str, Path]) -> None:
        """Check that an ensemble does not contain itself. Blocking: it may read configurations.

        Args:
            parts: the models that it would consist of.

        Raises:
            ModelLoadError: INVALID_ARG, the ensemble would contain itself.
        """
        paths: list[tuple[str, ...]] = [(ensemble, part) for part in parts]
        seen: set[str] = set()
        while paths:
            path = paths.pop()
            name = path[-1]
            if name == ensemble:
                raise ModelLoadError(
                    f"circular dependency between ensembles: {ensemble} -> ... -> {path[-2]} -> {ensemble}. The steps "
                    f"lead round: {' -> '.join(path)}",
                    ErrorCode.INVALID_ARG,
                )
            if name not in seen:
                seen.add(name)
                on_disk = part_names_on_disk(directories[name], self._config_name) if name in directories else ()
                stored = self._names.parts(on_disk, self._names.split(name)[0], directories)
                following = stored if self.lacking([name]) else self.parts(name)
                paths += [(*path, part) for part in following]
