"""Finds the directories that a model's Python needs, and those that its environment may open to it.

The author of an environment defines its parts: by ``pyvenv.cfg``, by links, by its name in a configuration. A directory
reached that way is opened only if it is a Python installation and contains nothing that is hidden from models.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pybackend.environment.environment import Environment
from pybackend.sandbox.file_rules import ServerPlaces, contains, hidden_places, is_model

_OF_INSTALLATION = ("bin", "lib", "lib64", "libexec", "include", "share", "ssl")
"""Parts of a Python installation that a virtual environment needs; other entries beside them stay closed."""

_LINE_END = re.compile(r"[\r\n]")


@dataclass(frozen=True)
class PythonPlaces:
    """The places of an environment."""

    directories: tuple[str, ...]
    # those without which its Python cannot run a model; the others are only searched for modules
    needed: tuple[str, ...]
    objection: str = ""  # the reason why an untrusted model must not have this environment; ``""`` if it may


def python_places(environment: Environment, server: ServerPlaces, model_directory: Path) -> PythonPlaces:
    """Find the directories of an interpreter and its packages."""
    if not environment.is_foreign:
        needed = _own_python(environment)
        numpy = os.path.dirname(os.path.dirname(np.__file__))  # every model process imports from there
        return PythonPlaces(_distinct([*needed, *_search_path()]), _distinct([*needed, numpy]))
    python = str(environment.python)
    prefix = os.path.realpath(environment.prefix or os.path.dirname(os.path.dirname(python)))
    own = os.path.realpath(model_directory)
    hidden = [path for path in hidden_places(server) if not contains(own, path)]
    bases = [os.path.dirname(os.path.dirname(os.path.realpath(python))), _base_of_virtual_environment(prefix)]
    found = []
    for base in bases:
        if base and not contains(prefix, base) and not _foreign_model(base, server, own):
            found += list(_parts_of_installation(base, hidden))
    covers = next((path for path in hidden if contains(prefix, path)), "")
    objection = _objection(prefix, covers, _foreign_model(prefix, server, own))
    whole = [] if covers else [prefix]
    packages = [os.path.join(library, "site-packages") for library in _pythons(os.path.join(prefix, "lib"))]
    return PythonPlaces(_distinct([*whole, *found]), _distinct([*whole, *found, *packages]), objection)


def _own_python(environment: Environment) -> list[str]:
    python = str(environment.python)
    found = [str(environment.prefix or ""), os.path.dirname(os.path.dirname(python))]
    found.append(os.path.dirname(os.path.dirname(os.path.realpath(python))))
    return [*found, sys.prefix, sys.base_prefix, sys.exec_prefix]


def _distinct(paths: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for path in paths if path and path != "/"))


def _search_path() -> list[str]:
    """Return this Python's package directories outside its own, without PYTHONPATH; models search them too."""
    not_theirs = {"", os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    return [path for path in sys.path if path not in not_theirs and os.path.isdir(path)]


def _objection(prefix: str, covers: str, model: str) -> str:
    if covers:
        return f"{prefix} cannot be its environment: it contains {covers}, which is hidden from models"
    if model:
        return f"{prefix} cannot be its environment: it belongs to another model, in {model}"
    if not os.path.isfile(os.path.join(prefix, "pyvenv.cfg")) and not _is_installation(prefix):
        return f"{prefix} cannot be its environment: it has neither a pyvenv.cfg nor a Python's standard library"
    return ""


def _base_of_virtual_environment(prefix: str) -> str:
    """Return the prefix of a virtual environment's base Python; as in Python itself, the first ``home`` line counts."""
    try:
        text = Path(prefix, "pyvenv.cfg").read_text("utf-8", "replace")
    except OSError:
        return ""
    for line in _LINE_END.split(text):
        name, equals, value = line.partition("=")
        if equals and name.strip().lower() == "home":
            home = value.strip()
            return os.path.dirname(os.path.realpath(home)) if os.path.isabs(home) else ""
    return ""


def _parts_of_installation(base: str, hidden: list[str]) -> Iterator[str]:
    if base == "/" or not _is_installation(base):
        return
    for name in _OF_INSTALLATION:
        path = os.path.realpath(os.path.join(base, name))
        if contains(base, path) and not any(contains(path, other) for other in hidden):
            yield path


def _is_installation(base: str) -> bool:
    """Whether a Python's standard library is there; ``bin`` with programs alone could be anyone's directory."""
    return any(
        os.path.isfile(os.path.join(library, "os.py"))
        for name in ("lib", "lib64")
        for library in _pythons(os.path.join(base, name))
    )


def _pythons(directory: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith("python3")]
    except OSError:
        return []


def _foreign_model(path: str, server: ServerPlaces, own: str) -> str:
    """Return the directory of another model that contains a path; ``""`` for none."""
    if contains(own, path):
        return ""
    for repository in server.repositories:
        if path != repository and contains(repository, path):
            entry = os.path.join(repository, os.path.relpath(path, repository).partition("/")[0])
            if is_model(entry):
                return entry
    return ""
