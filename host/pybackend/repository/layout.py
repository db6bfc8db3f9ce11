"""The layout of model repositories on disk: their models and directories. Read when models are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pybackend.errors import ModelLoadError, ServerError
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, printable, subdirectories

DUPLICATE_REASON = "model appears in two or more repositories"
"""The reason shown in the repository index for a model whose name occurs twice."""

_NOT_MODELS = frozenset({"__pycache__", "lost+found"})


@dataclass(frozen=True, slots=True)
class RepositoryScan:
    """The models of all repositories.

    Attributes:
        repositories: the scanned directories.
        model_directories: directories of single models, searched as well.
        models: directory by model name, sorted by name; excludes duplicates.
        duplicates: directories by model name, for names that occur in several repositories; these models are not
            served.
        warnings: one sentence each, for the log.
    """

    repositories: tuple[Path, ...]
    models: Mapping[str, Path]
    duplicates: Mapping[str, tuple[Path, ...]]
    warnings: tuple[str, ...]
    model_directories: tuple[Path, ...] = ()

    @property
    def places(self) -> tuple[Path, ...]:
        """All directories that were searched for models."""
        return (*self.repositories, *self.model_directories)

    def again(self) -> RepositoryScan:
        """The same places as they are now; raises as :func:`scan_repositories`."""
        return scan_repositories(self.repositories, self.model_directories)


def scan_repositories(repositories: Sequence[Path], model_directories: Sequence[Path] = ()) -> RepositoryScan:
    """Find every model directory in the given repositories; a repository given twice is scanned once.

    Args:
        repositories: directories of models.
        model_directories: directories of single models, each of which counts while it exists.

    Raises:
        ServerError: a repository is missing, is not a directory or cannot be read.
    """
    found: dict[str, list[Path]] = {}
    warnings: list[str] = []
    for repository in {os.path.realpath(path): path for path in reversed(repositories)}.values():
        names = _model_names(repository)
        if os.path.isfile(repository / CONFIG_FILENAME):
            warnings.append(
                f"'{repository}' holds a {CONFIG_FILENAME}: it looks like a model, not like a repository of models. "
                f"Was '{os.path.dirname(os.path.realpath(repository))}' meant?"
            )
        for name in names:
            if printable(name) != name:
                warnings.append(f"ignore model directory '{printable(name)}' in {repository}: its name is not UTF-8")
            else:
                found.setdefault(name, []).append(repository / name)
    for directory in model_directories:
        if os.path.isdir(directory):
            found.setdefault(directory.name, []).append(directory)
    duplicates = {name: tuple(sorted(paths)) for name, paths in sorted(found.items()) if len(paths) > 1}
    for name, paths in duplicates.items():
        warnings.append(
            f"failed to poll model '{name}': not unique across all model repositories: {', '.join(map(str, paths))}"
        )
    models = {name: paths[0] for name, paths in sorted(found.items()) if len(paths) == 1}
    return RepositoryScan(tuple(repositories), models, duplicates, tuple(warnings), tuple(model_directories))


def model_directory(scan: RepositoryScan, name: str) -> Path:
    """The directory of a model.

    Raises:
        ModelLoadError: it is in no repository, or in several.
    """
    if name in scan.duplicates:
        raise ModelLoadError(f"{DUPLICATE_REASON}: {', '.join(map(str, scan.duplicates[name]))}")
    if name not in scan.models:
        raise ModelLoadError(f"there is no directory '{name}' in {', '.join(map(str, scan.places))}")
    return scan.models[name]


def is_model_directory(directory: Path) -> bool:
    """Whether a directory holds one model, and not a repository of models: a configuration, or a version with a model file."""
    if os.path.isfile(directory / CONFIG_FILENAME):
        return True
    try:
        names = subdirectories(directory)
    except OSError:
        return False
    return any(name.isdecimal() and os.path.isfile(directory / name / DEFAULT_MODEL_FILENAME) for name in names)


def _model_names(repository: Path) -> list[str]:
    try:
        return [name for name in subdirectories(repository) if name not in _NOT_MODELS]
    except FileNotFoundError:
        reason = "it does not exist"
    except NotADirectoryError:
        reason = "it is not a directory"
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
    raise ServerError(f"repository path is not a valid directory: '{repository}': {reason}")
