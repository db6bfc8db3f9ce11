"""The backend of a configuration, given or inferred. First step of a load."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.known_backends import (
    BACKEND_OF_PLATFORM,
    DEFAULT_MODEL_FILENAME,
    backend_of_filename,
    backend_of_files,
    usual_filename,
)
from pybackend.modelconfig.model_directory import printable, scan_versions
from pybackend.modelconfig.schema import ModelConfig

_MOST_FILES = 1000


def inferred_backend(document: Mapping[str, Any], model_directory: Path, *, by_name: bool) -> str:
    """Infer the backend of a configuration that names none, from its platform or its files.

    Args:
        model_directory: its lowest version that has such a file decides.

    Returns:
        ``""`` if nothing indicates a backend; then ``by_name`` is False, or the platform names one.

    Raises:
        ModelConfigError: nothing indicates a backend, not even the name.
        ModelLoadError: the directory cannot be read.
    """
    platform = document["platform"]
    if platform:
        return BACKEND_OF_PLATFORM.get(platform, "")
    filename = document["default_model_filename"]
    versions = [] if filename else list(scan_versions(model_directory).versions.values())
    found = next(filter(None, map(backend_of_files, versions)), "") if versions else backend_of_filename(filename)
    if found or not by_name:
        return found
    name = document["name"]
    backend = str(name).partition(".")[2]
    if not backend:
        raise ModelConfigError(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            f"configuration. Expected model name of the form 'model.<backend_name>'. {_advice(model_directory, versions)}"
        )
    return backend


def _advice(model_directory: Path, versions: Sequence[Path]) -> str:
    """A sentence that names a file in the wrong place or of another name, or else where files belong."""
    first = versions[0] if versions else model_directory / "1"
    if not versions and backend_of_files(model_directory):
        return f"The model's files lie in {model_directory}, and belong into a version's directory: move them into {first}."
    for directory in (*versions, model_directory):
        for name in _files(directory):
            usual = usual_filename(name)
            if usual and (directory == model_directory or name != usual):
                command = f"mv {shlex.quote(str(directory / name))} {shlex.quote(str(first / usual))}"
                kept = (
                    ""
                    if directory == model_directory
                    else f', or name it in config.pbtxt, default_model_filename: "{name}"'
                )
                return f"There is {directory / name}, which no backend looks for: `{command}`{kept}."
    return (
        f'For a Python model, put its code into {model_directory / "1" / DEFAULT_MODEL_FILENAME} or set backend: "python" in '
        "config.pbtxt; a file of another framework tells its backend by its name, such as model.onnx."
    )


def _files(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(printable(entry.name) for entry in islice(entries, _MOST_FILES))
    except OSError:
        return []


def check_backend(config: ModelConfig) -> str:
    """The backend of a configuration, after checking that platform and backend agree.

    Raises:
        ModelConfigError: they contradict each other, or both are missing.
    """
    name, platform, backend, source = config.name, config.platform, config.backend, config.source
    if not platform and not backend:
        raise ModelConfigError(f"must specify 'platform' or 'backend' for '{name}': set backend: \"python\" ({source})")
    if not backend and platform not in BACKEND_OF_PLATFORM:
        raise ModelConfigError(
            f"unexpected platform type '{platform}' for {name}: leave 'platform' out and set backend: \"python\" "
            f"({source})"
        )
    if backend and BACKEND_OF_PLATFORM.get(platform, backend) != backend:
        raise ModelConfigError(
            f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}. A Python model has no 'platform' "
            f"({source})"
        )
    return backend or BACKEND_OF_PLATFORM[platform]
