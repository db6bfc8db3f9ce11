"""What a backend cannot do without: its framework, and the file or directory that holds the model."""

import os
import sys
from importlib import import_module
from typing import Any, Mapping, Sequence

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import get_model_dir
from pybackend_sdk.spelling import closest
from pybackend_wire.installation import install_command


def require(module: str, *, backend: str, extra: str) -> Any:
    """Import a module of the backend's framework, and return it.

    Args:
        module: to import.
        backend: its name, for ``pybackend pack --backend``.
        extra: the optional dependency of pybackend that installs the module.

    Raises:
        TritonModelException: it is not installed, or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # the framework is installed, and lacks another package
            raise _broken(module, backend, error) from error
        archive = f"{backend}.tar.gz"
        raise TritonModelException(
            f"backend '{backend}' needs the Python package {package}, which {sys.executable} does not have. Make an "
            f"environment with `pybackend pack --backend {backend} -o {archive}` and serve with "
            f"--backend-config={backend},environment={archive}; or install it beside the server with "
            f"{install_command(extra)}; or add it to the environment that the model names"
        ) from None
    except Exception as error:  # a package of another platform, or two that do not fit, raise anything
        raise _broken(module, backend, error) from error


def _broken(module: str, backend: str, error: BaseException) -> TritonModelException:
    return TritonModelException(
        f"backend '{backend}' cannot import {module} in {sys.executable}: {type(error).__name__}: {error}. Its packages do "
        f"not fit together: `pybackend pack --backend {backend}` makes an environment in which they do"
    )


_MOST_NAMES = 20


def model_path(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """The absolute path of the model's file or directory: the configured one, else the first of ``names`` that exists.

    Args:
        config: the model's configuration; ``default_model_filename`` wins over ``names``.
        names: usual names, the preferred one first. A path such as ``model.onnx/model.onnx`` is one too.

    Raises:
        TritonModelException: there is none; the text has the searched names and the names in the directory.
    """
    directory = get_model_dir()
    configured = config.get("default_model_filename")
    searched = [configured] if configured else list(names)
    for name in searched:
        path = os.path.normpath(os.path.join(directory, name))
        if os.path.exists(path):
            return path
    raise TritonModelException(
        f"model '{config['name']}': there is no {' or '.join(searched)} in {directory}, {_present(directory, searched)}"
    )


def _present(directory: str, searched: Sequence[str]) -> str:
    """A clause about the files in the directory."""
    try:
        present = sorted(os.listdir(directory))[:_MOST_NAMES]
    except OSError as error:
        return f"which cannot be read: {error.strerror}"
    if not present:
        return "which is empty"
    name = closest(searched[0], present) or present[0]
    return f'which holds {", ".join(present)}: rename the model\'s file, or name it in config.pbtxt, default_model_filename: "{name}"'
