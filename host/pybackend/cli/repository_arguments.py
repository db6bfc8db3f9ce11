"""Directories of models on the command line of an author: repositories, or single models."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.plugins import FRAMEWORK_FILES
from pybackend.repository.layout import holds_models, is_model_directory
from pybackend.settings import Settings


def with_single_models(settings: Settings) -> Settings:
    """The settings, with each repository that is the directory of one model treated as that model."""
    single = tuple(path for path in settings.repositories if is_model_directory(path))
    repositories = tuple(path for path in settings.repositories if not is_model_directory(path))
    return replace(settings, repositories=repositories, model_directories=single)


def refuse_bare_models(settings: Settings) -> None:
    """Refuse a file or directory of a framework where a repository is expected.

    Raises ServerError with the commands that serve such a thing.
    """
    for path in settings.repositories:
        title_of = FRAMEWORK_FILES.load_if_installed() if may_be_bare(path) else None
        title = None if title_of is None else title_of(path)
        if title is not None:
            named = shlex.quote(str(path))
            raise ServerError(
                f"{path} is {title}, and no repository of models: `pybackend import {named}` makes an entry in the "
                f"repository `models`, and `pybackend dev {named}` serves it at once, to this machine"
            )


def may_be_bare(path: Path) -> bool:
    """Whether a path names no repository of models, but perhaps the file or directory of a framework. Blocking.

    Raises ServerError if it is the code of a model without a version's directory.
    """
    files = [path.name] if path.is_file() else [entry.name for entry in _entries(path) if entry.is_file()]
    if not files or holds_models(path):
        return False
    code = next((name for name in files if name == DEFAULT_MODEL_FILENAME), "")
    if path.is_file() and path.suffix == ".py":
        code = path.name
    if code and CONFIG_FILENAME not in files:
        directory = path.parent if path.is_file() else path
        if directory.name.isdecimal():
            model = directory.parent
            raise ServerError(
                f"{directory / code} is the code of version {directory.name} of model '{model.name}': name its repository, {model.parent}"
                f", or for `pybackend dev` and `check` the model's directory, {model}"
            )
        target = Path("models", directory.resolve().name, "1")
        raise ServerError(
            f"{directory / code} is the code of a model, and {path} no repository of models. A model is a directory "
            f"<model>/<version>/{DEFAULT_MODEL_FILENAME} there: `mkdir -p {shlex.quote(str(target))} && cp "
            f"{shlex.quote(str(directory / code))} {shlex.quote(str(target / DEFAULT_MODEL_FILENAME))}`, then name `models`"
        )
    return True


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []  # the scan says why
