"""Which models name which environment."""

from __future__ import annotations

from pathlib import Path


class EnvironmentUses:
    """What the configurations say that were read last, whether or not their models are loaded."""

    def __init__(self) -> None:
        self._paths: dict[Path, Path] = {}

    def note(self, directory: Path, path: Path | None) -> None:
        """The model in this directory names an environment, or none."""
        if path is None:
            self._paths.pop(directory, None)
        else:
            self._paths[directory] = path

    def directories(self, path: Path) -> list[Path]:
        """Of the models that name an environment, by this path."""
        return [directory for directory, named in list(self._paths.items()) if named == path]
