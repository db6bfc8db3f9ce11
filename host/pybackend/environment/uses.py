"""Records which models name which environment."""

from __future__ import annotations

from pathlib import Path


class EnvironmentUses:
    """The environments in the configurations last read, whether or not their models are loaded."""

    def __init__(self) -> None:
        self._paths: dict[Path, Path] = {}

    def note(self, directory: Path, path: Path | None) -> None:
        """Record the environment of the model in this directory; None if it names none."""
        if path is None:
            self._paths.pop(directory, None)
        else:
            self._paths[directory] = path

    def directories(self, path: Path) -> list[Path]:
        """Directories of existing models that name the environment at this path. Blocking."""
        for directory, named in list(self._paths.items()):
            if named == path and not directory.exists():  # a model whose files came with a load, and are gone
                self._paths.pop(directory, None)
        return [directory for directory, named in list(self._paths.items()) if named == path]
