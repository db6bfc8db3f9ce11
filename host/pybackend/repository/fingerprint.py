"""What the files of a model looked like when it was loaded: whether a later load finds them changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pybackend.modelconfig.model_directory import CONFIG_FILENAME

_NOT_PART = frozenset({"__pycache__"})
"""Written by whoever runs the code, not by its author."""

FileStamps = Mapping[str, tuple[int, ...]]
"""By path: what changes when a file is written, replaced or linked elsewhere."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The files of one model's directory.

    Attributes:
        folders: the files below each directory of the model's, by its name.
        others: the files beside them, without the configuration, which is compared by what it means.
    """

    folders: Mapping[str, FileStamps]
    others: FileStamps

    def of_version(self, version: int) -> VersionFingerprint:
        """The part that one version's code can depend on: its own directory, and whatever is no version."""
        shared = {name: stamps for name, stamps in self.folders.items() if not name.isdecimal()}
        return VersionFingerprint(self.folders.get(str(version), {}), shared, self.others)


@dataclass(frozen=True, slots=True)
class VersionFingerprint:
    """The files that one version depends on; equal if none of them was changed, added or removed."""

    own: FileStamps
    shared: Mapping[str, FileStamps]
    others: FileStamps


def fingerprint(model_directory: Path) -> Fingerprint:
    """Look at every file of a model, links followed; reads no content. Blocking: not for the event loop."""
    folders: dict[str, FileStamps] = {}
    others: dict[str, tuple[int, ...]] = {}
    for entry in _entries(str(model_directory)):
        if os.path.isdir(entry.path):  # a loop of links is no directory
            folders[entry.name] = _below(entry.path)
        elif entry.name != CONFIG_FILENAME:
            others[entry.name] = file_stamp(entry.path)
    return Fingerprint(folders, others)


def _below(directory: str) -> FileStamps:
    stamps: dict[str, tuple[int, ...]] = {}
    visited: set[tuple[int, int]] = set()  # links may lead round in circles
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in _entries(path):
            if os.path.isdir(entry.path):
                waiting.append(entry.path)
            else:
                stamps[os.path.relpath(entry.path, directory)] = file_stamp(entry.path)
    return stamps


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.name not in _NOT_PART]
    except OSError:
        return []  # what cannot be read cannot be loaded either, and the load says why


def file_stamp(path: str) -> tuple[int, ...]:
    """What changes when a file is written, replaced or linked elsewhere; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
