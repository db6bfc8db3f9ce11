"""Python-based backends: a ``model.py`` in the backend directory that serves every model of that backend.

Such a model consists of data only; its configuration contains ``backend: "foo"``. Resolved once per load, after the
backend's name is known.
"""

from __future__ import annotations

import os
from pathlib import Path

from pybackend.author_files.reading import is_file_beneath
from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.backend import DEFAULT_MODEL_FILENAME, PYTHON
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig
from pybackend.spelling import closest

_PACKAGES = {
    "onnxruntime": "onnxruntime",
    "pytorch": "torch",
    "tensorflow": "tensorflow",
    "tensorrt": "tensorrt",
    "openvino": "openvino",
}
"""Python packages that load the files of the reference's backends."""


def backend_file(config: ModelConfig, backend_directory: Path) -> Path | None:
    """The backend file that serves a loaded model, None if the model has its own code."""
    return None if config.backend == PYTHON else backend_directory / config.backend / config.runtime


def default_environment(config: ModelConfig, backend_directory: Path) -> Path | None:
    """The packed environment beside a backend's code, for models that name none; None if there is no such file."""
    archive = backend_directory / config.backend / f"pb_exec_env_{config.runtime}.tar.gz"
    return archive if config.backend != PYTHON and os.path.exists(archive) else None


def find_runtime(config: ModelConfig, model_directory: Path, backend_directory: Path) -> str:
    """The file name in the backend's directory that serves a model: the configured one, else ``model.py``.

    Args:
        config: of a backend other than Python.
        model_directory: searched for a native library, including its versions.
        backend_directory: has one directory per backend.

    Raises:
        ModelConfigError: there is no such file, or it is native code.
        ModelLoadError: the model's directory cannot be read.
    """
    home = backend_directory / config.backend
    if not _is_filename(config.backend) or not _is_filename(config.runtime):
        # A path could lead to code that was never installed as a backend.
        why = f"'backend' and 'runtime' of model '{config.name}' must be names, not paths."
        raise _missing(config, f"{why} {_advice(backend_directory)}")
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
        if _holds(directory, library):
            raise _native(config, directory / library, home)
    if config.runtime:
        places = " ".join(f"'{directory}'" for directory in searched)
        raise ModelConfigError(
            f"unable to find backend library '{library}' for model '{config.name}', searched: {places}. "
            f"{_advice(backend_directory)} ({config.source})"
        )
    if not os.path.isfile(home / DEFAULT_MODEL_FILENAME):
        raise _missing(config, _ways_to_serve(config, home))
    return DEFAULT_MODEL_FILENAME


def _ways_to_serve(config: ModelConfig, home: Path) -> str:
    if config.backend == "ensemble":
        return 'An ensemble has platform: "ensemble" and no backend.'
    if closest(config.backend, [PYTHON]):
        return f'Did you mean backend: "{PYTHON}"?'
    package = _PACKAGES.get(config.backend)
    with_package = f"the Python package {package}" if package else "a Python package"
    return (
        f"This server runs models in Python. A file of another framework is served by a {DEFAULT_MODEL_FILENAME} of ten "
        f'lines that loads it with {with_package}, and backend: "{PYTHON}" in config.pbtxt: '
        "docs/authors/other-frameworks.md shows it. One file of code can also serve all models of a backend: "
        f"{home / DEFAULT_MODEL_FILENAME} (--backend-directory), which does not exist."
    )


def _holds(directory: Path, library: str) -> bool:
    try:
        return is_file_beneath(directory, library)
    except OSError:
        return False


def _is_filename(text: str) -> bool:
    return "/" not in text and text not in {".", ".."}


def _missing(config: ModelConfig, why: str) -> ModelConfigError:
    return ModelConfigError(
        f"unable to find backend library for backend '{config.backend}', try specifying runtime on the model "
        f"configuration. {why} ({config.source})"
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
        f"Backends written in Python are searched in {backend_directory} (--backend-directory); a model with its own "
        f'{DEFAULT_MODEL_FILENAME} needs backend: "{PYTHON}".'
    )
