"""Where backends are found: the operator's directory first, then those that come with this server.

And the file that serves a model.

A backend of another name than ``python`` is a ``model.py`` in its directory that serves all models of that backend.
"""

import importlib.util
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pybackend.author_files import is_file_beneath
from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME, PYTHON, known_backend
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig
from pybackend.settings import DEFAULT_BACKEND_DIRECTORY
from pybackend.spelling import closest
from pybackend_wire.installation import install_command

ENVIRONMENT = "environment"
"""The setting of a backend that names an environment for its models."""

_SHIPPED, _RECIPE, _LOCK = "pybackend_backends", "requirements.txt", "requirements-lock.txt"


@cache
def shipped_backends() -> Path:
    """The directory of the backends that come with this server, as installed."""
    spec = importlib.util.find_spec(_SHIPPED)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def recipe_of(backend: str) -> Path:
    """The list of packages that the models of a shipped backend need."""
    return shipped_backends() / backend / _RECIPE


def lock_of(backend: str) -> Path:
    """The exact versions of the packages in :func:`recipe_of`, with hashes, for all CPythons on Linux."""
    return shipped_backends() / backend / _LOCK


def backends_with_recipes() -> list[str]:
    """The shipped backends for which an environment can be packed, sorted."""
    return sorted(path.parent.name for path in shipped_backends().glob(f"*/{_RECIPE}"))


@dataclass(frozen=True)
class BackendPlaces:
    """The operator's choices for backends."""

    # of the operator's own backends, one directory for each; it need not exist
    directory: Path = DEFAULT_BACKEND_DIRECTORY
    # of those that come with this server; models' processes must be able to read it
    shipped: Path = field(default_factory=shipped_backends)
    # of ``--backend-config``, by backend; ``""`` has those of all backends
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def home(self, backend: str, runtime: str = "") -> Path:
        """The directory of a backend; one that need not exist if nobody has such a backend."""
        file = runtime or DEFAULT_MODEL_FILENAME
        own, shipped = self.directory / backend, self.shipped / backend
        return shipped if not os.path.isfile(own / file) and os.path.isfile(shipped / file) else own

    def is_shipped(self, backend: str, runtime: str = "") -> bool:
        """Whether a backend of this server serves, not one of the operator's."""
        return self.home(backend, runtime).parent == self.shipped

    def settings_of(self, backend: str) -> dict[str, str]:
        """The operator's settings of one backend; its own win over those of all backends."""
        return {**self.settings.get("", {}), **self.settings.get(backend, {})}

    def environment_of(self, backend: str) -> Path | None:
        """The environment that the operator has chosen for a backend's models, None for none."""
        text = self.settings.get(backend, {}).get(ENVIRONMENT)
        return Path(text).absolute() if text else None


def backend_file(config: ModelConfig, backends: BackendPlaces) -> Path | None:
    """The backend file that serves a loaded model, None if the model has its own code."""
    if config.backend == PYTHON:
        return None
    return backends.home(config.backend, config.runtime) / config.runtime


def default_environment(config: ModelConfig, backends: BackendPlaces) -> Path | None:
    """The environment of models that name none: the operator's choice for the backend, or the archive beside its code.

    None if there is neither.
    """
    if config.backend == PYTHON:
        return None
    chosen = backends.environment_of(config.backend)
    if chosen is not None:
        return chosen
    archive = backends.directory / config.backend / f"pb_exec_env_{config.runtime}.tar.gz"
    return archive if os.path.exists(archive) else None


def require_framework(
    config: ModelConfig, backends: BackendPlaces, environment: Path | None = None, modules: Collection[str] = ()
) -> None:
    """Check that a model's Python has the framework of a shipped backend. The framework is not imported.

    Raises ModelConfigError: UNAVAILABLE, it is missing; the text has the commands that mend it. Without an
    ``environment``, it is the server's own.
    """
    row = known_backend(config.backend)
    if not row.modules or not backends.is_shipped(config.backend, config.runtime):
        return
    archive = f"{row.name}.tar.gz"
    if environment is not None:
        if not {*row.modules} & {*modules}:
            raise ModelConfigError(
                f"backend '{row.name}' of model '{config.name}' needs the Python package {' or '.join(row.modules)}, which the "
                f"environment {environment} does not have: `pybackend pack --backend {row.name} -o {archive}` makes one that has "
                f"it ({config.source})",
                ErrorCode.UNAVAILABLE,
            )
        return
    if any(importlib.util.find_spec(module) is not None for module in row.modules):
        return
    raise ModelConfigError(
        f"backend '{row.name}' of model '{config.name}' needs the Python package {' or '.join(row.modules)}, which the "
        f"server's own Python ({sys.executable}) does not have. Make an environment with `pybackend pack --backend "
        f"{row.name} -o {archive}` and serve with --backend-config={row.name},environment={archive}; or install it beside "
        f"the server with {install_command(row.extra)} ({config.source})",
        ErrorCode.UNAVAILABLE,
    )


def find_runtime(config: ModelConfig, model_directory: Path, backends: BackendPlaces) -> str:
    """The file name in the backend's directory that serves a model: the configured one, else ``model.py``.

    The model's directory and its versions must not hold a native library.
    """
    if not _is_filename(config.backend) or not _is_filename(config.runtime):
        # A path could lead to code that was never installed as a backend.
        why = f"'backend' and 'runtime' of model '{config.name}' must be names, not paths."
        raise _missing(config, f"{why} {_advice(backends)}")
    if config.runtime.endswith(".py"):
        home = backends.home(config.backend, config.runtime)
        if not os.path.isfile(home / config.runtime):
            raise ModelConfigError(
                f"unable to find Python backend based backend library '{config.runtime}' for model '{config.name}', "
                f"searched: '{home / config.runtime}'. {_advice(backends)} ({config.source})"
            )
        return config.runtime
    home, usual_library = backends.home(config.backend), f"libtriton_{config.backend}.so"
    searched = [*scan_versions(model_directory).versions.values(), model_directory]
    # The library of the reference's backend does not stand in the way of the shipped one that replaces it.
    replaced = backends.is_shipped(config.backend)
    if not replaced:
        searched.append(home)
    library = config.runtime or usual_library
    for directory in searched:
        if _holds(directory, library):
            raise _native(config, directory / library, home)
    if config.runtime and not (replaced and library == usual_library):
        places = " ".join(f"'{directory}'" for directory in searched)
        raise ModelConfigError(
            f"unable to find backend library '{library}' for model '{config.name}', searched: {places}. "
            f"{_advice(backends)} ({config.source})"
        )
    if not os.path.isfile(home / DEFAULT_MODEL_FILENAME):
        raise _missing(config, _ways_to_serve(config, home))
    return DEFAULT_MODEL_FILENAME


def _ways_to_serve(config: ModelConfig, home: Path) -> str:
    if config.backend == "ensemble":
        return 'An ensemble has platform: "ensemble" and no backend.'
    if closest(config.backend, [PYTHON]):
        return f'Did you mean backend: "{PYTHON}"?'
    row = known_backend(config.backend)
    if row.instead:
        return row.instead
    with_package = f"the Python package {' or '.join(row.modules)}" if row.modules else "a Python package"
    return (
        f"This server runs models in Python. A file of another framework is served by a {DEFAULT_MODEL_FILENAME} of ten "
        f'lines that loads it with {with_package}, and backend: "{PYTHON}" in config.pbtxt: '
        "docs/authors/models-without-code.md shows it. One file of code can also serve all models of a backend: "
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


def _advice(backends: BackendPlaces) -> str:
    return (
        f"Backends written in Python are searched in {backends.directory} (--backend-directory); a model with its own "
        f'{DEFAULT_MODEL_FILENAME} needs backend: "{PYTHON}".'
    )
