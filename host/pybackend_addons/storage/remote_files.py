"""The models and files of a repository in cloud storage, as its listing names them."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pybackend.errors import ModelLoadError

MOST_FILES = 100_000
"""Limit per model, as for local models."""

_LONGEST_NAME, _LONGEST_PATH = 255, 3000  # bytes, of Linux file systems


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An object, at one moment."""

    path: str  # below the repository
    nbytes: int
    tag: str  # its ETag; "" where the storage has none
    changed: datetime  # when it was written

    @property
    def identity(self) -> str:
        """Differs between two contents of one path."""
        content = self.tag or self.changed.isoformat()
        return hashlib.sha256("\n".join((self.path, content, str(self.nbytes))).encode()).hexdigest()


@dataclass(frozen=True)
class RemoteModel:
    """The files of one model."""

    name: str
    files: Mapping[str, RemoteFile]  # by path below the model's directory
    versions: tuple[str, ...]  # names of the directories that are versions

    def shared(self) -> list[RemoteFile]:
        """The files outside version directories."""
        return [file for path, file in self.files.items() if path.partition("/")[0] not in self.versions]

    def of_versions(self, versions: Iterable[str]) -> list[RemoteFile]:
        wanted = set(versions)
        return [file for path, file in self.files.items() if path.partition("/")[0] in wanted]


def remote_model(name: str, listing: Iterable[RemoteFile], place: str) -> RemoteModel:
    """Arrange a listing.

    An empty object may stand for a directory, since consoles make such objects: it does if other objects lie below it,
    or if its name is that of a version.

    Raises ModelLoadError: a path cannot be a file's, or two of them contradict each other. Paths of the listing begin
    with the name.
    """
    files: dict[str, RemoteFile] = {}
    directories: set[str] = set()
    for file in listing:
        path = file.path.partition("/")[2]
        if not path:
            continue
        _check(path, name, place)
        files[path] = file
        above = path.rpartition("/")[0]
        while above and above not in directories:
            directories.add(above)
            above = above.rpartition("/")[0]
    for path in [path for path, file in files.items() if path in directories or _is_marker(path, file)]:
        if files.pop(path).nbytes:
            raise ModelLoadError(
                f"'{name}/{path}' is a file and a directory in {place}, which no file system can hold: rename one of both"
            )
        directories.add(path)
    tops = {path.partition("/")[0] for path in (*files, *directories) if "/" in path or path in directories}
    return RemoteModel(name, files, tuple(sorted(top for top in tops if top.isascii() and top.isdigit())))


def _is_marker(path: str, file: RemoteFile) -> bool:
    return not file.nbytes and path.isascii() and path.isdigit()


def _check(path: str, name: str, place: str) -> None:
    parts = path.split("/")
    fits = "\0" not in path and len(path.encode()) <= _LONGEST_PATH
    if not fits or any(part in {"", ".", ".."} or len(part.encode()) > _LONGEST_NAME for part in parts):
        raise ModelLoadError(
            f"the object '{name}/{path[:200]}' in {place} has a name that cannot be a file's path: rename or remove it"
        )
