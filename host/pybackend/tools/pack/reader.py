"""Reads the specification of an environment before anything is resolved or installed."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from pybackend.tools.pack.environment_yml import read_environment_yml
from pybackend.tools.pack.errors import SpecificationError
from pybackend.tools.pack.specification import (
    CondaPrefix,
    Specification,
    VirtualEnvironment,
    WheelPackages,
    requirement_lines,
)
from pybackend.tools.pack.text_file import read_text

KINDS = (
    "an environment.yml, a requirements.txt, a pyproject.toml, the directory of a conda environment, or that of a virtual "
    "environment"
)


def read_specification(path: Path) -> Specification:
    """Read the file, or inspect the directory.

    Raises SpecificationError if it is missing, of an unknown kind, or contains a mistake, and UnpackableError if it
    requests a package that cannot be packed.
    """
    try:
        is_directory = path.is_dir()
        if not is_directory and not path.exists():
            raise SpecificationError(f"{path} does not exist: name {KINDS}")
        path = Path(os.path.abspath(path))
        if is_directory:
            return _directory(path)
    except OSError as error:
        raise SpecificationError(f"{path} cannot be read: {error.strerror}") from None
    if path.suffix in {".yml", ".yaml"}:
        return read_environment_yml(path)
    if path.name == "pyproject.toml":
        return _pyproject(path)
    if path.suffix in {".txt", ".in"}:
        return WheelPackages(path, requirement_lines(path))
    raise SpecificationError(f"{path} is of an unknown kind: name {KINDS}")


def _directory(path: Path) -> Specification:
    if (path / "conda-meta").is_dir():
        return CondaPrefix(path)
    if (path / "pyvenv.cfg").is_file():
        return VirtualEnvironment(path)
    inside = [name for name in ("environment.yml", "requirements.txt", "pyproject.toml") if (path / name).is_file()]
    if inside:
        raise SpecificationError(f"{path} is a directory but not an environment: did you mean {path / inside[0]}?")
    raise SpecificationError(
        f"{path} is a directory without conda-meta and pyvenv.cfg, so it is not an environment: name {KINDS}"
    )


def _pyproject(path: Path) -> WheelPackages:
    text = read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecificationError(f"{path} is not TOML: {error}") from None
    project = document.get("project")
    if not isinstance(project, dict):
        raise SpecificationError(f"{path} has no table [project], so it lists no packages")
    requires = project.get("requires-python", "")
    return WheelPackages(
        path,
        is_project="build-system" in document,
        requires_python=requires if isinstance(requires, str) else "",
    )
