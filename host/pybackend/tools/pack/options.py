"""Options and results of a pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.environment.manifest import EnvironmentManifest
from pybackend.tools.pack.progress import Progress

FORMATS: Mapping[str, tuple[str, ...]] = {"tar.gz": (".tar.gz", ".tgz"), "tar.zst": (".tar.zst", ".tzst")}
"""Compression formats, and their file name suffixes."""


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _no_warning(_: str) -> None:
    pass


@dataclass(frozen=True)
class PackOptions:
    """Options of a pack, apart from its file.

    Attributes:
        archive_format: ``tar.gz`` or ``tar.zst``; None derives it from the archive's name.
        python: a version or path of the interpreter, for files that do not name one.
        lock: a file that pins the packages; written if it does not exist.
        msgpack: add msgpack to the packages if available: it makes messages cheaper for models.
        work_directory: where the environment is assembled, None for the cache directory.
        warn: receives warnings, one sentence each.
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
    """The download size of a package.

    Attributes:
        size_bytes: None if the index does not state it, 0 for a package that is here already.
        source: the channel, ``pypi``, or another origin.
    """

    name: str
    version: str
    size_bytes: int | None
    source: str


@dataclass(frozen=True)
class PackResult:
    """The result of a pack or a dry run.

    Attributes:
        archive: the file, None for a dry run.
        packages: packages with sizes, for a dry run.
    """

    archive: Path | None
    manifest: EnvironmentManifest | None = None
    packages: tuple[PackedSize, ...] = ()
    size_bytes: int = 0
    unpacked_bytes: int = 0
    file_count: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
