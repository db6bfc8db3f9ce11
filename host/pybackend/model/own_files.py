"""Files beside models' code that the models write themselves. They are no changes of these models."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

MOST_OWN_FILES = 10_000
"""Of one model. More are those with a new name each time, of which the oldest are forgotten."""


class OwnFiles:
    """What the processes of models say of themselves: a model that lies can keep itself from being reloaded, nothing else."""

    def __init__(self) -> None:
        self._paths: dict[Path, dict[str, None]] = {}

    def note(self, directory: Path, path: str) -> None:
        """A model's process is about to write, replace or remove a file, given by its path in the model's directory."""
        paths = self._paths.setdefault(directory, {})
        if not paths:
            log.info(
                "model '%s' writes %s beside its code: files that a model writes itself are no changes of the model",
                directory.name,
                path,
            )
        paths.pop(path, None)
        paths[path] = None
        if len(paths) > MOST_OWN_FILES:
            del paths[next(iter(paths))]

    def of(self, directory: Path) -> Collection[str]:
        """Such files of the model in a directory, by their paths there."""
        return self._paths.get(directory, {}).keys()
