"""Directories of models on the command line of an author: repositories, or single models."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pybackend.errors import ServerError
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.repository.layout import is_model_directory
from pybackend.settings import Settings

if TYPE_CHECKING:
    from pybackend.tools.importing.kinds import Found


def with_single_models(settings: Settings) -> Settings:
    """The settings, with each repository that is the directory of one model treated as that model."""
    single = tuple(Path(os.path.abspath(path)) for path in settings.repositories if is_model_directory(path))
    repositories = tuple(path for path in settings.repositories if not is_model_directory(path))
    return replace(settings, repositories=repositories, model_directories=single)


def refuse_bare_models(settings: Settings) -> None:
    """Refuse a file or directory of a framework where a repository is expected.

    Raises ServerError with the commands that serve such a thing.
    """
    for path in settings.repositories:
        found = bare_model_at(path)
        if found is not None:
            named = shlex.quote(str(path))
            raise ServerError(
                f"{path} is {found.kind.title}, and no repository of models: `pybackend import {named}` makes an entry in the "
                f"repository `models`, and `pybackend dev {named}` serves it at once, to this machine"
            )


def bare_model_at(path: Path) -> Found | None:
    """The framework's model that a path names instead of a repository; None for all others. Blocking.

    Raises ServerError if it is the code of a model without a version's directory.
    """
    files = [path.name] if path.is_file() else [entry.name for entry in _entries(path) if entry.is_file()]
    if not files:
        return None
    from pybackend.tools.importing.detection import bare_model, holds_models  # late: most servers start without it

    if holds_models(path):
        return None
    code = next((name for name in files if name == DEFAULT_MODEL_FILENAME), "")
    if path.is_file() and path.suffix == ".py":
        code = path.name
    if code and CONFIG_FILENAME not in files:
        directory = path.parent if path.is_file() else path
        target = Path("models", directory.resolve().name, "1")
        raise ServerError(
            f"{directory / code} is the code of a model, and {path} no repository of models. A model is a directory "
            f"<model>/<version>/{DEFAULT_MODEL_FILENAME} there: `mkdir -p {shlex.quote(str(target))} && cp "
            f"{shlex.quote(str(directory / code))} {shlex.quote(str(target / DEFAULT_MODEL_FILENAME))}`, then name `models`"
        )
    return bare_model(path)


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []  # the scan says why
