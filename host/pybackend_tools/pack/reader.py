"""Reads the specification of an environment before anything is resolved or installed."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.spelling import closest
from pybackend_tools.pack.errors import SpecificationError
from pybackend_tools.pack.specification import (
    CondaPackages,
    CondaPrefix,
    Specification,
    VirtualEnvironment,
    WheelPackages,
    read_text,
    refuse_editable_lines,
    refuse_idle_hashes,
    requirement_lines,
)

KINDS = (
    "an environment.yml, a requirements.txt, a pyproject.toml, the directory of a conda environment, or that of a virtual "
    "environment"
)


def read_specification(path: Path) -> Specification:
    """Read the file, or inspect the directory."""
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
        path, is_project="build-system" in document, requires_python=requires if isinstance(requires, str) else ""
    )


DEFAULT_CHANNEL = "conda-forge"
"""Channel used if the file names none."""

_KEYS = ("name", "channels", "dependencies", "variables", "prefix")
_IGNORED_CHANNELS = {"nodefaults"}


def read_environment_yml(path: Path) -> CondaPackages:
    """Read the file."""
    import yaml

    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise SpecificationError(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(document, dict):
        raise SpecificationError(f"{path} contains no mapping: it should begin with `dependencies:` or `channels:`")
    for key in document:
        if key not in _KEYS:
            similar = closest(str(key), _KEYS)
            meant = f"; did you mean '{similar}'?" if similar else f": known keys are {', '.join(_KEYS)}"
            raise SpecificationError(f"{path}: the key '{key}' is unknown{meant}")
    specs, requirements = _dependencies(path, document)
    refuse_editable_lines(path, requirements)
    refuse_idle_hashes(path, requirements)
    return CondaPackages(_channels(path, document), specs, requirements, _variables(path, document))


def _channels(path: Path, document: Mapping[str, Any]) -> tuple[str, ...]:
    channels = [
        _channel(path, channel) for channel in _texts(path, document, "channels") if channel not in _IGNORED_CHANNELS
    ]
    return tuple(dict.fromkeys(channels)) or (DEFAULT_CHANNEL,)


def _channel(path: Path, channel: str) -> str:
    if channel == "defaults":
        raise SpecificationError(
            f"{path}: 'defaults' is not a channel but a setting of conda, which is not used here: write the channels "
            f"that it stands for, or {DEFAULT_CHANNEL}"
        )
    if channel.startswith(("./", "../", "~", "/")):
        return Path(os.path.abspath(path.parent / os.path.expanduser(channel))).as_uri()
    return channel


def _dependencies(path: Path, document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    entries = document.get("dependencies")
    if not isinstance(entries, list) or not entries:
        raise SpecificationError(f"{path}: `dependencies` must be a list of packages, such as `- python=3.12`")
    specs: list[str] = []
    requirements: list[str] = []
    for entry in entries:
        if isinstance(entry, dict):
            for name in entry:
                if name != "pip":
                    raise SpecificationError(
                        f"{path}: the section '{name}' of `dependencies` is unknown: only `pip` is supported"
                    )
            # One entry may be a complete line of a requirements file, including options.
            requirements += [line for text in _texts(path, entry, "pip") for line in text.splitlines()]
        elif isinstance(entry, str) and entry.strip():
            specs.append(entry.strip())
        else:
            raise SpecificationError(f"{path}: {entry!r} in `dependencies` is not a package")
    return tuple(specs), tuple(requirements)


def _variables(path: Path, document: Mapping[str, Any]) -> dict[str, str]:
    variables = document.get("variables") or {}
    if not isinstance(variables, dict):
        raise SpecificationError(f"{path}: `variables` must be a mapping of names to values")
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise SpecificationError(f"{path}: {name!r} in `variables` is not a valid name of an environment variable")
        if isinstance(value, (dict, list)) or "\0" in str(value):
            raise SpecificationError(f"{path}: the variable '{name}' does not have a plain value")
    return {name: _plain(value) for name, value in variables.items()}


def _plain(value: object) -> str:
    # YAML reads `yes` and `on` as true; conda writes them as Python does.
    return "" if value is None else str(value)


def _texts(path: Path, document: Mapping[str, Any], key: str) -> list[str]:
    entries = document.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, (str, int, float)) for entry in entries):
        raise SpecificationError(f"{path}: `{key}` must be a list of strings")
    return [str(entry) for entry in entries]
