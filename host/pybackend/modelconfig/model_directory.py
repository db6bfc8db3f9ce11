"""The contents of a model's directory: its configuration file and its version directories. Read at load time only."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pybackend.errors import ModelLoadError
from pybackend.modelconfig.bounds import MOST_VERSIONS
from pybackend.spelling import closest

CONFIG_FILENAME = "config.pbtxt"

CONFIGS_DIRECTORY = "configs"
"""Holds configurations that the server's operator may choose by name instead."""

_NOT_VERSIONS = frozenset({"warmup", "initial_state", CONFIGS_DIRECTORY, "__pycache__"})
_HIGHEST_VERSION = 2**63 - 1
_MOST_FILES, _FILE_SIMILARITY = 1000, 0.75
_MOST_DIGITS = 100  # a file name can have more digits than int() accepts


@dataclass(frozen=True, slots=True)
class VersionScan:
    """The version directories of one model."""

    versions: Mapping[int, Path]  # path by version number, ascending
    warnings: tuple[str, ...]  # ignored directories that may have been meant as versions


def config_file(model_directory: Path, config_name: str) -> str:
    """The configuration file of a model, relative to its directory. Blocking.

    ``configs/<config_name>.pbtxt`` is the file if it exists.
    """
    custom = f"{CONFIGS_DIRECTORY}/{config_name}.pbtxt"
    return custom if config_name and os.path.lexists(model_directory / custom) else CONFIG_FILENAME


def scan_versions(model_directory: Path) -> VersionScan:
    """Find the version directories of a model. Links to directories count as directories."""
    versions: dict[int, Path] = {}
    warnings: list[str] = []
    try:
        names = subdirectories(model_directory)
    except OSError as error:
        raise ModelLoadError(f"failed to read model directory {model_directory}: {error.strerror}") from None
    if len(names) > MOST_VERSIONS:
        raise ModelLoadError(
            f"model directory {model_directory} holds {len(names)} directories, and the most is {MOST_VERSIONS}"
        )
    for name in names:
        if name in _NOT_VERSIONS:
            continue
        if not _is_version_number(name):
            warnings.append(
                f"ignore version directory '{printable(name)}' which fails to convert to integral number, "
                f"in {model_directory}"
            )
        elif name.startswith("0") and name != "0":
            warnings.append(
                f"ignore version directory '{name}' which has a leading zero, in {model_directory}; "
                f"rename it to '{int(name)}'"
            )
        else:
            versions[int(name)] = model_directory / name
    return VersionScan(dict(sorted(versions.items())), tuple(warnings))


def subdirectories(directory: Path) -> list[str]:
    """Names of the directories in ``directory``, including links to directories, without hidden ones.

    Raises OSError: ``directory`` cannot be listed.
    """
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_directory(entry))


def similar_file(directory: Path, name: str) -> str:
    """The name of a file that is probably meant to have another name, ``""`` if there is none. Blocking.

    Links are not followed.
    """
    if directory.is_symlink():
        return ""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, _MOST_FILES) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return ""
    return printable(closest(name, names, _FILE_SIMILARITY))


def printable(name: str) -> str:
    """A file name for a message; bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()  # a loop of links is not a directory


def _is_version_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MOST_DIGITS and int(name) <= _HIGHEST_VERSION
