"""Options and results of a pack."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pybackend.environment.manifest import EnvironmentManifest

Advance = Callable[[float, float], None]
"""Called with the amount done and the total."""


class Progress:
    """Shows nothing, and measures the duration of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, title: str) -> Iterator[Advance]:
        """One step; yields a callback for progress reports, which any thread may call."""
        started = time.perf_counter()
        try:
            yield self._ignore
        finally:
            self.seconds[title] = time.perf_counter() - started

    def _ignore(self, _done: float, _total: float) -> None:
        pass


class TerminalProgress(Progress):
    """One line per step, with a bar while the total is known."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        from rich.console import Console

        self._console = Console(file=stream)

    @contextmanager
    def step(self, title: str) -> Iterator[Advance]:
        from rich import progress as bars

        columns = (
            bars.SpinnerColumn(finished_text="✓"),
            bars.TextColumn("{task.description:<28}", markup=False),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
        )
        with super().step(title), bars.Progress(*columns, console=self._console) as display:
            task = display.add_task(title, total=None)

            def advance(done: float, total: float) -> None:
                display.update(task, completed=done, total=total)

            yield advance
            display.update(task, completed=1, total=1)


FORMATS: Mapping[str, tuple[str, ...]] = {"tar.gz": (".tar.gz", ".tgz"), "tar.zst": (".tar.zst", ".tzst")}
"""Compression formats, and their file name suffixes."""


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _no_warning(_: str) -> None:
    pass


@dataclass(frozen=True)
class PackOptions:
    """Options of a pack, apart from its file."""

    archive_format: str | None = None  # ``tar.gz`` or ``tar.zst``; None derives it from the archive's name
    python: str | None = None  # a version or path of the interpreter, for files that do not name one
    extras: tuple[str, ...] = ()
    lock: Path | None = None  # a file that pins the packages; written if it does not exist
    msgpack: bool = True  # add msgpack to the packages if available: it makes messages cheaper for models
    dry_run: bool = False
    work_directory: Path | None = None  # where the environment is assembled, None for the cache directory
    threads: int = field(default_factory=available_cores)
    progress: Progress = field(default_factory=Progress)
    warn: Callable[[str], None] = _no_warning  # receives warnings, one sentence each


@dataclass(frozen=True)
class PackedSize:
    """The download size of a package."""

    name: str
    version: str
    size_bytes: int | None  # None if the index does not state it, 0 for a package that is here already
    source: str  # the channel, ``pypi``, or another origin


@dataclass(frozen=True)
class PackResult:
    """The result of a pack or a dry run."""

    archive: Path | None  # the file, None for a dry run
    manifest: EnvironmentManifest | None = None
    packages: tuple[PackedSize, ...] = ()  # packages with sizes, for a dry run
    size_bytes: int = 0
    unpacked_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
