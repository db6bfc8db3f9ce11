"""Python-based backends: a ``model.py`` in the backend directory that serves every model of that backend.

Such a model brings data only; its configuration says ``backend: "foo"``. Looked up once per load, after the backend's
name is known.
"""

from __future__ import annotations

import os
from pathlib import Path

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.backend import DEFAULT_MODEL_FILENAME, PYTHON
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig


def backend_file(config: ModelConfig, backend_directory: Path) -> Path | None:
    """The file whose code serves a model that is loaded, None if the model brings its own."""
    return None if config.backend == PYTHON else backend_directory / config.backend / config.runtime


def default_environment(config: ModelConfig, backend_directory: Path) -> Path | None:
    """The packed environment that a backend keeps beside its code for models that name none, if there is one."""
    archive = backend_directory / config.backend / f"pb_exec_env_{config.runtime}.tar.gz"
    return archive if config.backend != PYTHON and os.path.exists(archive) else None


def find_runtime(config: ModelConfig, model_directory: Path, backend_directory: Path) -> str:
    """The name of the file in the backend's directory that serves a model: the configured one, else ``model.py``.

    Args:
        config: of a backend other than Python.
        model_directory: searched for a native library, as its versions are.
        backend_directory: holds a directory per backend.

    Raises:
        ModelConfigError: there is none, or it is native code.
        ModelLoadError: the model's directory cannot be read.
    """
    home = backend_directory / config.backend
    if not _is_filename(config.backend) or not _is_filename(config.runtime):
        # A path could lead to code that nobody has put there as a backend.
        raise _missing(
            config, f"'backend' and 'runtime' of model '{config.name}' must be names, not paths.", backend_directory
        )
    if config.runtime.endswith(".py"):
        if not os.path.isfile(home / config.runtime):
            raise ModelConfigError(
                f"unable to find Python backend based backend library '{config.runtime}' for model '{config.name}', "
                f"searched: '{home / config.runtime}'. {_advice(backend_directory)} ({config.source})"
            )
        return config.runtime
    searched = [*scan_versions(model_directory).versions.values(), model_directory, home]
    library = config.runtime or f"libtriton_{config.backend}.so"
    for directory in searched:
        if os.path.isfile(directory / library):
            raise _native(config, directory / library, home)
    if config.runtime:
        places = " ".join(f"'{directory}'" for directory in searched)
        raise ModelConfigError(
            f"unable to find backend library '{library}' for model '{config.name}', searched: {places}. "
            f"{_advice(backend_directory)} ({config.source})"
        )
    if not os.path.isfile(home / DEFAULT_MODEL_FILENAME):
        needed = f"Model '{config.name}' needs {home / DEFAULT_MODEL_FILENAME}, which does not exist."
        raise _missing(config, needed, backend_directory)
    return DEFAULT_MODEL_FILENAME


def _is_filename(text: str) -> bool:
    return "/" not in text and text not in {".", ".."}


def _missing(config: ModelConfig, why: str, backend_directory: Path) -> ModelConfigError:
    return ModelConfigError(
        f"unable to find backend library for backend '{config.backend}', try specifying runtime on the model "
        f"configuration. {why} {_advice(backend_directory)} ({config.source})"
    )


def _native(config: ModelConfig, library: Path, home: Path) -> ModelConfigError:
    advice = "Backends can be written in Python only."
    if os.path.isfile(home / DEFAULT_MODEL_FILENAME):
        advice = f'runtime: "{DEFAULT_MODEL_FILENAME}" chooses {home / DEFAULT_MODEL_FILENAME} instead.'
    return ModelConfigError(
        f"unable to load shared library: {library}: this server runs no native code for model '{config.name}'. "
        f"{advice} ({config.source})",
        ErrorCode.UNSUPPORTED,
    )


def _advice(backend_directory: Path) -> str:
    return (
        f"Backends written in Python are looked for in {backend_directory} (--backend-directory); a model with a "
        f'{DEFAULT_MODEL_FILENAME} of its own has backend: "{PYTHON}".'
    )
