"""Directories of models on the command line of an author: repositories, or single models."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pybackend.repository.layout import is_model_directory
from pybackend.settings import Settings


def with_single_models(settings: Settings) -> Settings:
    """The settings, with each repository that is the directory of one model treated as that model."""
    single = tuple(Path(os.path.abspath(path)) for path in settings.repositories if is_model_directory(path))
    repositories = tuple(path for path in settings.repositories if not is_model_directory(path))
    return replace(settings, repositories=repositories, model_directories=single)
