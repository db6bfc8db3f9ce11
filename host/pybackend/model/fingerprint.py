"""Fingerprints of a model's files, by which a later load detects changes."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pybackend.modelconfig.model_directory import CONFIG_FILENAME, CONFIGS_DIRECTORY

log = logging.getLogger(__name__)

_NOT_PART = frozenset(
    {"__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints", ".git", ".idea"}
)
"""Created by Python and by the author's tools, not by the author."""

_OF_EDITORS = re.compile(r"4913|\.#.*|#.*#|.*~|\..*\.sw[a-z]|.*___jb_(?:tmp|old)___")
"""Names of files that editors create for a moment: vim's, Emacs' and those of JetBrains."""

MOST_FILES = 100_000
"""Limit per model, including linked directories. A packed environment has about ten thousand files."""

FileStamps = Mapping[str, tuple[int, ...]]
"""By path: values that change when a file is written, replaced or linked elsewhere."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The files of one model's directory; two fingerprints are equal if no file was changed, added or removed."""

    folders: Mapping[str, FileStamps]  # the files below each of its subdirectories, by subdirectory name
    others: FileStamps  # all other files except configurations, which are compared by content

    def of_version(self, version: int) -> Fingerprint:
        """The part that affects one version: the version's directory, and everything outside version directories."""
        shared = {name: stamps for name, stamps in self.folders.items() if not name.isdecimal()}
        return Fingerprint({**shared, str(version): self.folders.get(str(version), {})}, self.others)

    def without(self, paths: Collection[str]) -> Fingerprint:
        """The same without some files, given by their paths in the model's directory."""
        if not paths:
            return self
        folders = {name: _without(stamps, paths, f"{name}/") for name, stamps in self.folders.items()}
        return Fingerprint(folders, _without(self.others, paths, ""))

    def changed(self, before: Fingerprint) -> frozenset[str]:
        """The paths of all files that differ."""
        return frozenset(path for path, _ in self._stamps ^ before._stamps)

    @property
    def _stamps(self) -> set[tuple[str, tuple[int, ...]]]:
        below = {(f"{name}/{path}", stamp) for name, stamps in self.folders.items() for path, stamp in stamps.items()}
        return below | set(self.others.items())


def _without(stamps: FileStamps, paths: Collection[str], prefix: str) -> FileStamps:
    return {path: stamp for path, stamp in stamps.items() if prefix + path not in paths}


def fingerprint(model_directory: Path) -> Fingerprint | None:
    """Stat every file of a model, following links, without opening any; None if there are too many. Blocking."""
    folders: dict[str, FileStamps] = {}
    others: dict[str, tuple[int, ...]] = {}
    look = _Look()
    try:
        for entry in look.entries(str(model_directory)):
            status = _status(entry.path)
            if entry.name == CONFIGS_DIRECTORY:
                continue
            if _is_directory(status):
                folders[entry.name] = _below(entry.path, look)
            elif entry.name != CONFIG_FILENAME:
                others[entry.name] = _stamp(status)
    except _TooMany:
        log.warning(
            "%s and what its links lead to hold more than %d files: every load reloads the model",
            model_directory,
            MOST_FILES,
        )
        return None
    return Fingerprint(folders, others)


def _below(directory: str, look: _Look) -> FileStamps:
    stamps: dict[str, tuple[int, ...]] = {}
    visited: set[tuple[int, int]] = set()  # links may form cycles
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        status = _status(path)
        if status is None or (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in look.entries(path):
            status = _status(entry.path)
            if _is_directory(status):
                waiting.append(entry.path)
            else:
                stamps[entry.path[len(directory) + 1 :]] = _stamp(status)
    return stamps


class _TooMany(Exception):
    """There are too many files, e.g. because a link leads to the root of the file system."""


class _Look:
    """Lists directories, up to a total number of entries."""

    def __init__(self) -> None:
        self._count = 0

    def entries(self, directory: str) -> list[os.DirEntry[str]]:
        found = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._count += 1
                    if self._count > MOST_FILES:
                        raise _TooMany
                    if entry.name not in _NOT_PART and not _OF_EDITORS.fullmatch(entry.name):
                        found.append(entry)
        except OSError:
            return []  # an unreadable directory fails the load, which reports the reason
        return found


def file_stamp(path: str) -> tuple[int, ...]:
    """Values that change when a file is written, replaced or linked elsewhere; empty if it does not exist."""
    return _stamp(_status(path))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # e.g. a loop of links
        return None


def _is_directory(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def _stamp(status: os.stat_result | None) -> tuple[int, ...]:
    if status is None:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
