"""The Python environment of a model, and the variables that activating it sets, apart from its hooks.

The ``activate`` script itself does not run; :mod:`pybackend.environment.hooks` runs the hooks of packages.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.author_files import open_regular
from pybackend.environment.manifest import EnvironmentManifest
from pybackend_wire.confinement import LIBRARY_PATH


@dataclass(frozen=True)
class Environment:
    """A Python interpreter with its packages, ready to start."""

    python: Path
    identity: str  # equal for environments whose models may share a zygote; not part of any path
    prefix: Path | None = None  # its directory, None for the host's own Python
    # variables that activation sets, in addition to those that models inherit from the host
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_foreign(self) -> bool:
        """True if its interpreter differs from the server's."""
        return str(self.python) != sys.executable


def installed_packages(directories: Iterable[Path]) -> dict[str, str]:
    """The versions of the packages whose files lie in these directories, by name.

    No file of a package is read. Blocking.
    """
    found: dict[str, str] = {}
    for directory in directories:
        with suppress(OSError):
            for name in sorted(os.listdir(directory)):
                package, dash, version = name.removesuffix(".dist-info").partition("-")
                if dash and name.endswith(".dist-info") and len(found) < _MOST_PACKAGES:
                    found.setdefault(package, version)
    return found


HOST_ENVIRONMENT = Environment(Path(sys.executable), "host")
"""The server's own Python, with its installed packages."""


_MOST_STATE_BYTES = 1024 * 1024
_MOST_PACKAGES = 2000

_NOT_THEIRS = frozenset({"PATH", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX"})
_NOT_THEIRS_EITHER = ("LD_", "PYTHON", "PYBACKEND_")
"""Prefixes of variables that change which code runs."""


def activation_variables(
    prefix: Path,
    manifest: EnvironmentManifest | None,
    host: Mapping[str, str] | None = None,
    *,
    keeps_library_path: bool = False,
) -> dict[str, str]:
    """The environment variables of a process in an environment, in addition to the host's.

    Args:
        keeps_library_path: without ``LD_LIBRARY_PATH``, its Python could not start again.
    """
    host = os.environ if host is None else host
    bin_directory, outer_path = str(prefix / "bin"), host.get("PATH", "")
    variables = _own_variables(prefix, manifest)
    variables["VIRTUAL_ENV"] = str(prefix)
    variables["VIRTUAL_ENV_PROMPT"] = f"({prefix})"
    variables["PATH"] = f"{bin_directory}{os.pathsep}{outer_path}" if outer_path else bin_directory
    # The host's value would make a foreign interpreter load the host's libraries.
    variables["LD_LIBRARY_PATH"] = str(prefix / "lib")
    if not keeps_library_path:
        variables[LIBRARY_PATH] = variables["LD_LIBRARY_PATH"]
    if (prefix / "conda-meta").is_dir():
        variables["CONDA_PREFIX"] = str(prefix)
    return variables


def _own_variables(prefix: Path, manifest: EnvironmentManifest | None) -> dict[str, str]:
    """Variables set by the author, with ``variables`` in environment.yml or with ``conda env config vars set``."""
    found = _conda_state(prefix) if manifest is None else dict(manifest.variables)
    return {
        name: value
        for name, value in found.items()
        if may_be_set(name) and name and not {"=", "\0"} & set(name) and "\0" not in value
    }


def may_be_set(name: str) -> bool:
    """True if an environment, or a package in it, may set this variable."""
    return name not in _NOT_THEIRS and not name.startswith(_NOT_THEIRS_EITHER)


def _conda_state(prefix: Path) -> dict[str, str]:
    try:
        with open_regular(prefix / "conda-meta" / "state") as file:
            variables = json.loads(file.read(_MOST_STATE_BYTES))["env_vars"]
        return {name: value for name, value in variables.items() if isinstance(value, str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
