"""Finds the files of a model: its directory, its version, and the file with its class."""

import importlib.util
import os
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from pybackend_sdk.testing.errors import ConfigError, LoadError, ModelDirectoryError

PathLike = Union[str, "os.PathLike[str]"]


def model_directory(path: PathLike) -> str:
    """Return the absolute path of a model's directory.

    Raises:
        ModelDirectoryError: the path is not a directory; the message says what to pass instead.
    """
    directory = os.path.abspath(os.fspath(path))
    if os.path.isfile(directory):
        raise ModelDirectoryError(
            f"{directory} is a file: pass the model's directory, two levels above, which holds version directories"
        )
    if not os.path.isdir(directory):
        raise ModelDirectoryError(f"there is no directory {directory}")
    return directory


def version_directory(directory: str, wanted: Optional[int]) -> Tuple[int, str]:
    """Return a version's number and directory; the highest version by default.

    Raises:
        ModelDirectoryError: there is no such version; the message says what the directory holds instead.
    """
    versions = _versions(directory)
    if wanted is not None:
        if wanted not in versions:
            raise ModelDirectoryError(f"model {directory} has no version {wanted}; it has {sorted(versions) or 'none'}")
        return wanted, versions[wanted]
    if versions:
        return max(versions), versions[max(versions)]
    if os.path.isfile(os.path.join(directory, "model.py")):
        raise ModelDirectoryError(
            f"{directory} is a version directory, as it holds a model.py: pass the directory above it, "
            f"{os.path.dirname(directory)}"
        )
    models = [name for name in sorted(os.listdir(directory)) if _versions(os.path.join(directory, name))]
    if models:
        raise ModelDirectoryError(f"{directory} is a repository of models: pass one of them, {', '.join(models)}")
    raise ModelDirectoryError(
        f"{directory} has no version directory: the model's file is expected in {directory}/1/model.py"
    )


def model_file(directory: str, document: Mapping[str, Any], backend_directory: Optional[PathLike]) -> Tuple[str, bool]:
    """Return the file with the model's class, and whether it belongs to a Python-based backend.

    Raises:
        LoadError: there is no such file.
        ConfigError: the configuration names a backend that does not come with pybackend, but ``backend_directory`` is missing.
    """
    backend = document["backend"]
    if backend_directory is None:
        backend_directory = _shipped_backends(backend)
    if backend == "python":
        path = os.path.join(directory, document["default_model_filename"])
    elif backend_directory is None:
        raise ConfigError(
            f"model '{document['name']}' has backend '{backend}': backend_directory= must name the directory that holds "
            f"'{backend}' with its model.py. A model with its own model.py has backend: \"python\"."
        )
    else:
        path = os.path.join(os.path.abspath(os.fspath(backend_directory)), backend, document["runtime"] or "model.py")
    if not os.path.isfile(path):
        raise LoadError(f"Failed to preinitialize Python stub: Python model file not found in '{path}'")
    return os.path.normpath(path), backend != "python"


def _shipped_backends(backend: str) -> Optional[str]:
    """Return the directory of the backends that come with pybackend, None if the backend is not there."""
    spec = importlib.util.find_spec("pybackend_backends")
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        if os.path.isfile(os.path.join(directory, backend, "model.py")):
            return directory
    return None


def _versions(directory: str) -> Dict[int, str]:
    if not os.path.isdir(directory):
        return {}
    names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit() and str(int(name)) == name]
    return {int(name): os.path.join(directory, name) for name in names if os.path.isdir(os.path.join(directory, name))}
