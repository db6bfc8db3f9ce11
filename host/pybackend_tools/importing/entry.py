"""The entry of a repository while it is made: a hidden directory beside the models, moved into place when it is whole.

Servers ignore hidden directories, and a move within one file system is atomic: a server that follows the repository
sees all of an entry or none of it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from pybackend.errors import ServerError
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, scan_versions

SAMPLE_REQUEST = "sample_request.json"
_PREFIX = ".pybackend-import-"

MOST_NESTING = 64
"""Directories within one another that are copied."""

MOST_FILES = 100_000
"""Files and directories that are copied; links make a few of them look like very many."""


@dataclass(frozen=True)
class EntryPath:
    """Where an entry will be."""

    repository: Path
    name: str
    version: int
    adds: bool  # the model exists, and gets this version; its configuration stays
    replaces: bool  # the present model or version makes way

    @property
    def model(self) -> Path:
        """The model's directory."""
        return self.repository / self.name


def place_of(repository: Path, name: str, version: int | None, *, force: bool) -> EntryPath:
    """Where a model may be put. Blocking.

    ``repository``: directory of models; it need not exist. ``version``: None for the first version of a new model.
    Raises ServerError if something is there already; the text has the ways out.
    """
    model = repository / name
    if not os.path.lexists(model):
        return EntryPath(repository, name, version or 1, adds=False, replaces=False)
    present = list(scan_versions(model).versions) if os.path.isdir(model) else []
    if version is None:
        if force:
            return EntryPath(repository, name, 1, adds=False, replaces=True)
        following = max(present, default=0) + 1
        raise ServerError(
            f"{model} exists already: --force replaces it, --name=NAME chooses another name, and `pybackend import "
            f"--version={following}` adds a version"
        )
    exists = os.path.lexists(model / str(version))
    if exists and not force:
        raise ServerError(
            f"{model / str(version)} exists already: --force replaces it, --version=N chooses another number"
        )
    return EntryPath(repository, name, version, adds=bool(present), replaces=exists or not present)


@dataclass
class StagedEntry:
    """An entry that is being made. As a context manager it removes everything that was not put into place.

    ``model``: the directory that becomes the model's. ``directory``: the hidden directory around it, which is a
    repository of this one model. Raises ServerError if the disk is full, or something cannot be read or written;
    earlier files are in their place then.
    """

    place: EntryPath
    directory: Path = field(init=False)
    _made: list[Path] = field(init=False, default_factory=list)

    @property
    def model(self) -> Path:
        return self.directory / self.place.name

    @property
    def version(self) -> Path:
        """The version directory."""
        return self.model / str(self.place.version)

    def __enter__(self) -> Self:
        repository = self.place.repository
        with _explained():
            missing = [each for each in (repository, *repository.parents) if not os.path.lexists(each)]
            for each in reversed(missing):
                each.mkdir()
                self._made.append(each)
            try:
                self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=repository)).absolute()
                self.directory.chmod(0o755)  # a model may run as another user
                self.version.mkdir(parents=True)
            except OSError:
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory, ignore_errors=True)
        for each in reversed(self._made):
            try:
                each.rmdir()
            except OSError:
                return  # it holds the entry

    def copy(self, files: Mapping[str, Path], given: Path) -> None:
        """Copy files and directories into the version directory.

        Links among them may lead to the same author's files only.

        ``files``: by their path in the version directory. ``given``: the file or directory that the user has named.
        """
        found = _Contents(_home(given))
        with _explained():
            for source in files.values():
                if source != given or source.is_dir():
                    found.look_at(source)
                else:
                    found.nbytes += source.stat().st_size
            free = shutil.disk_usage(self.version).free
            if found.nbytes > free:
                raise ServerError(
                    f"{given} holds {found.nbytes} bytes, and {self.place.repository} has room for {free}: make room, or "
                    "choose another --repository. Nothing was imported"
                )
            for name, source in files.items():
                target = self.version / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if os.path.isdir(source):
                    shutil.copytree(source, target, copy_function=shutil.copyfile)
                else:
                    shutil.copyfile(source, target)

    def share_version(self, target: Path) -> None:
        """Make the files of the version appear in a second directory, which need not exist."""
        with _explained():
            shutil.copytree(self.version, target, copy_function=_shared)

    def copy_beside(self) -> None:
        """Copy the files, but no versions, of the model that gets a version."""
        found = _Contents(os.path.realpath(self.place.model))
        with _explained():
            for name in os.listdir(self.place.model):
                if os.path.isfile(self.place.model / name):
                    found.look_at(self.place.model / name)
                    shutil.copyfile(self.place.model / name, self.model / name)

    def write(self, name: str, text: str) -> None:
        """Write a text file into the model's directory.

        The running model may have put a link in its place: that is removed.
        """
        with _explained():
            (self.model / name).unlink(missing_ok=True)
            with (self.model / name).open("x", encoding="utf-8") as file:
                file.write(text)

    def commit(self) -> None:
        """Put the entry into place."""
        with _explained():
            if self.place.adds:
                for name in sorted(set(os.listdir(self.model)) - {self.version.name, CONFIG_FILENAME}):
                    os.replace(self.model / name, self.place.model / name)
                self._put(self.version, self.place.model / self.version.name)
            else:
                self._put(self.model, self.place.model)

    def _put(self, made: Path, target: Path) -> None:
        aside = self.directory / f"{target.name}.before"
        if self.place.replaces and os.path.lexists(target):
            os.rename(target, aside)
        try:
            os.rename(made, target)
        except OSError:
            if os.path.lexists(aside):
                os.rename(aside, target)
            raise


def _home(given: Path) -> str:
    """The directory with all files of a model's author: the given one, or in a cache of Hugging Face the one with its blobs."""
    directory = Path(os.path.realpath(given if given.is_dir() else given.parent))
    hub = directory.parent.parent
    is_snapshot = directory.parent.name == "snapshots" and (hub / "blobs").is_dir()
    return str(hub if is_snapshot else directory)


class _Contents:
    """All that will be copied.

    ``home``: the directory that no link may leave.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._count = 0
        self.nbytes = 0  # size of all files

    def look_at(self, path: Path, above: tuple[str, ...] = ()) -> None:
        """Look at a file, or at a directory and all that it holds. Raises ServerError if it cannot be copied."""
        real, home = os.path.realpath(path), self._home
        if os.path.commonpath([real, home]) != home:
            raise ServerError(
                f"{path} leads to {real}, outside of {home}: only files of the model are copied. Put a copy of the file there, if "
                "it belongs to the model. Nothing was imported"
            )
        self._count += 1
        if self._count > MOST_FILES or len(above) > MOST_NESTING:
            raise ServerError(
                f"{home} is no model: it holds more than {MOST_FILES} files, or directories within {MOST_NESTING} others. "
                "Nothing was imported"
            )
        if os.path.isdir(path):
            if real in above:
                raise ServerError(f"{path} leads to {real}, which contains it: remove the link. Nothing was imported")
            for name in os.listdir(path):
                self.look_at(path / name, (*above, real))
        elif os.path.isfile(path):
            self.nbytes += path.stat().st_size
        elif os.path.exists(path):
            raise ServerError(f"{path} is neither a file nor a directory: remove it. Nothing was imported")


def _shared(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system knows no hard links
        shutil.copyfile(source, target)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except shutil.Error as error:
        source, _, reason = error.args[0][0]
        raise ServerError(f"cannot copy {source}: {reason}. Nothing was imported") from None
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:
            raise
        advice = (
            "make room, or choose another --repository"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}
            else ("choose another --repository, or change its permissions")
        )
        raise ServerError(f"cannot write {error.filename}: {error.strerror}: {advice}. Nothing was imported") from None
