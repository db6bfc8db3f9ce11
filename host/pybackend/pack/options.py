"""What a pack is asked for, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.environment.manifest import EnvironmentManifest
from pybackend.pack.progress import Progress

FORMATS: Mapping[str, tuple[str, ...]] = {"tar.gz": (".tar.gz", ".tgz"), "tar.zst": (".tar.zst", ".tzst")}
"""How archives are compressed, and how their names end."""


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _no_warning(_: str) -> None:
    pass


@dataclass(frozen=True)
class PackOptions:
    """What a pack is asked for beside its file.

    Attributes:
        archive_format: ``tar.gz`` or ``tar.zst``; None takes what the archive's name says.
        python: a version or a path of the interpreter, for files that do not name one.
        extras: optional dependencies of a pyproject.toml that are wanted too.
        lock: a file that says what exactly to install; written if it is not there.
        msgpack: put msgpack beside the packages, where it can be had: messages cost a model less with it.
        dry_run: only find out what would be installed.
        work_directory: where the packages are put together, None for the cache directory.
        threads: how many may compile and compress at the same time.
        progress: what is told how far it is.
        warn: what is told about surprises, one sentence each.
    """

    archive_format: str | None = None
    python: str | None = None
    extras: tuple[str, ...] = ()
    lock: Path | None = None
    msgpack: bool = True
    dry_run: bool = False
    work_directory: Path | None = None
    threads: int = field(default_factory=available_cores)
    progress: Progress = field(default_factory=Progress)
    warn: Callable[[str], None] = _no_warning


@dataclass(frozen=True)
class PackedSize:
    """How large a package is to download.

    Attributes:
        name: of the package.
        version: of the package.
        size_bytes: 0 if the index does not tell.
        source: the channel, ``pypi``, or the place that it comes from.
    """

    name: str
    version: str
    size_bytes: int
    source: str


@dataclass(frozen=True)
class PackResult:
    """What was packed, or would be.

    Attributes:
        archive: the file, None for a dry run.
        manifest: what is in it, None for a dry run.
        packages: with their sizes, for a dry run.
        size_bytes: of the archive.
        unpacked_bytes: of the files in it.
        file_count: of the files in it.
        seconds: how long each step took.
    """

    archive: Path | None
    manifest: EnvironmentManifest | None = None
    packages: tuple[PackedSize, ...] = ()
    size_bytes: int = 0
    unpacked_bytes: int = 0
    file_count: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
