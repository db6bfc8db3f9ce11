"""The layout of model repositories on disk: their models and directories. Read when models are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.errors import ModelLoadError, ServerError
from pybackend.modelconfig.known_backends import backend_of_files
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, printable, subdirectories
from pybackend.modelconfig.schema import full_name
from pybackend.pools import Pools
from pybackend.repository.names import Namespaces
from pybackend.repository.remote import Listing

DUPLICATE_REASON = "model appears in two or more repositories"
"""The reason shown in the repository index for a model whose name occurs twice."""

_NOT_MODELS = frozenset({"__pycache__", "lost+found"})


@dataclass(frozen=True, slots=True)
class RepositoryScan:
    """The models of all repositories."""

    repositories: tuple[Path, ...]
    models: Mapping[str, Path]  # directory by the model's full name, sorted by name; excludes duplicates
    # places by full name, for names that occur in several repositories; these models are not served
    duplicates: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]  # one sentence each, for the log
    model_directories: tuple[Path, ...] = ()  # directories of single models, searched as well
    # the repositories in cloud storage, by the local directories that show them
    listings: Mapping[Path, Listing] = field(default_factory=dict)
    namespaces: Namespaces | None = None  # of the server; None if names of models are unique in all repositories
    pools: Pools | None = None  # models of other pools are not there; None if this server has all

    @property
    def places(self) -> tuple[Path, ...]:
        """All directories that were searched for models."""
        return (*self.repositories, *self.model_directories)

    @property
    def place_names(self) -> tuple[str, ...]:
        return (*map(str, self.places), *(listing.place for listing in self.listings.values()))

    def again(self, listings: Mapping[Path, Listing]) -> RepositoryScan:
        """The same places as they are now; raises as :func:`scan_repositories`."""
        return scan_repositories(
            self.repositories,
            self.model_directories,
            listings,
            namespacing=self.namespaces is not None,
            pools=self.pools,
        )


def scan_repositories(
    repositories: Sequence[Path],
    model_directories: Sequence[Path] = (),
    listings: Mapping[Path, Listing] | None = None,
    *,
    namespacing: bool = False,
    pools: Pools | None = None,
) -> RepositoryScan:
    """Find every model directory in the given repositories; a repository given twice is scanned once.

    Raises ServerError: a repository is missing, is not a directory or cannot be read.

    Args:
        model_directories: directories of single models, each of which counts while it exists.
        listings: the repositories in cloud storage, by the local directories that show them; models need not be there
            yet.
        namespacing: several repositories may have a model of the same name: its repository is its namespace.
        pools: leave out the models of other pools.
    """
    found: dict[str, list[Path]] = {}
    warnings: list[str] = []
    namespaces: list[str] = []

    def add(place: str, name: str, directory: Path) -> None:
        if pools is None or pools.has(name):
            found.setdefault(full_name(place, name) if namespacing else name, []).append(directory)

    for repository in {os.path.realpath(path): path for path in reversed(repositories)}.values():
        names = _model_names(repository)
        namespaces.insert(0, str(repository))
        if os.path.isfile(repository / CONFIG_FILENAME):
            warnings.append(
                f"'{repository}' holds a {CONFIG_FILENAME}: it looks like a model, not like a repository of models. "
                f"Was '{os.path.dirname(os.path.realpath(repository))}' meant?"
            )
        for name in names:
            if printable(name) != name:
                warnings.append(f"ignore model directory '{printable(name)}' in {repository}: its name is not UTF-8")
            else:
                add(str(repository), name, repository / name)
    for directory in model_directories:
        namespaces.append(str(directory.parent))
        if os.path.isdir(directory):
            add(str(directory.parent), directory.name, directory)
    for shown, listing in (listings or {}).items():
        namespaces.append(listing.place)
        for name in filter(_may_be_model, listing.names):
            add(listing.place, name, shown / name)
    urls = {
        shown / name: f"{listing.place}/{name}" for shown, listing in (listings or {}).items() for name in listing.names
    }
    duplicates = {
        name: tuple(sorted(urls.get(path, str(path)) for path in paths))
        for name, paths in sorted(found.items())
        if len(paths) > 1
    }
    for name, paths in duplicates.items():
        warnings.append(f"failed to poll model '{name}': not unique across all model repositories: {', '.join(paths)}")
    models = {name: paths[0] for name, paths in sorted(found.items()) if len(paths) == 1}
    return RepositoryScan(
        tuple(repositories),
        models,
        duplicates,
        tuple(warnings),
        tuple(model_directories),
        listings or {},
        Namespaces(namespaces) if namespacing else None,
        pools,
    )


def model_directory(scan: RepositoryScan, name: str) -> Path:
    """The directory of a model."""
    if name in scan.duplicates:
        raise ModelLoadError(f"{DUPLICATE_REASON}: {', '.join(scan.duplicates[name])}")
    if scan.pools is not None and not scan.pools.has(name):
        raise ModelLoadError(
            f"model '{name}' belongs to pool '{scan.pools.of(name)}', and this server to '{scan.pools.own}'"
        )
    if name not in scan.models:
        raise ModelLoadError(f"there is no directory '{name}' in {', '.join(scan.place_names)}")
    return scan.models[name]


def is_model_directory(directory: Path) -> bool:
    """Whether a directory holds one model, and not a repository of models: a configuration, or a version with a model file."""
    if os.path.isfile(directory / CONFIG_FILENAME):
        return True
    try:
        names = subdirectories(directory)
    except OSError:
        return False
    return any(name.isdecimal() and backend_of_files(directory / name) for name in names)


def holds_models(directory: Path) -> bool:
    """Whether a subdirectory looks like a model of a repository: it has a configuration, or a version. Blocking."""
    try:
        with os.scandir(directory) as entries:
            within = [entry.path for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        return any(name == CONFIG_FILENAME or name.isdecimal() for each in within for name in os.listdir(each))
    except OSError:
        return False


def _may_be_model(name: str) -> bool:
    return name not in _NOT_MODELS and not name.startswith(".")


def _model_names(repository: Path) -> list[str]:
    try:
        return [name for name in subdirectories(repository) if _may_be_model(name)]
    except FileNotFoundError:
        reason = "it does not exist"
    except NotADirectoryError:
        reason = "it is not a directory"
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
    raise ServerError(f"repository path is not a valid directory: '{repository}': {reason}")
