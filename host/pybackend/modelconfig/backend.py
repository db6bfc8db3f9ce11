"""The backend of a configuration, given or inferred. First step of a load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.known_backends import (
    BACKEND_OF_PLATFORM,
    DEFAULT_MODEL_FILENAME,
    backend_of_filename,
    backend_of_files,
)
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig


def inferred_backend(document: Mapping[str, Any], model_directory: Path, *, by_name: bool) -> str:
    """Infer the backend of a configuration that names none, from its platform or its files.

    Args:
        document: complete; its name is the model's.
        model_directory: its lowest version that has such a file decides.
        by_name: infer it from the model's name as well.

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
            "configuration. Expected model name of the form 'model.<backend_name>'. For a Python model, put its code "
            f'into {model_directory / "1" / DEFAULT_MODEL_FILENAME} or set backend: "python" in config.pbtxt; a file of '
            "another framework tells its backend by its name, such as model.onnx."
        )
    return backend


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
