"""Reader of conda's environment.yml. It accepts everything that conda accepts, and refuses anything else by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.spelling import closest
from pybackend.tools.pack.errors import SpecificationError
from pybackend.tools.pack.specification import CondaPackages, refuse_editable_lines, refuse_idle_hashes
from pybackend.tools.pack.text_file import read_text

DEFAULT_CHANNEL = "conda-forge"
"""Channel used if the file names none."""

_KEYS = ("name", "channels", "dependencies", "variables", "prefix")
_IGNORED_CHANNELS = {"nodefaults"}


def read_environment_yml(path: Path) -> CondaPackages:
    """Read the file.

    Raises SpecificationError if the file cannot be read or contains a mistake, and UnpackableError if the file lists an
    editable package.
    """
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
