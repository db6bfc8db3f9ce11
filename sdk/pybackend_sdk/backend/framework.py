"""Imports a backend's framework, or says how to get it."""

import sys
from importlib import import_module
from typing import Any

from pybackend_sdk.error import TritonModelException


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
            f"`pip install 'pybackend[{extra}]'`; or add it to the environment that the model names"
        ) from None
    except Exception as error:  # a package of another platform, or two that do not fit, raise anything
        raise _broken(module, backend, error) from error


def _broken(module: str, backend: str, error: BaseException) -> TritonModelException:
    return TritonModelException(
        f"backend '{backend}' cannot import {module} in {sys.executable}: {type(error).__name__}: {error}. Its packages do "
        f"not fit together: `pybackend pack --backend {backend}` makes an environment in which they do"
    )
