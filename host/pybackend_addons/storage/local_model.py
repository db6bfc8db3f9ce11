"""A server's own copy of a model: the directory from which it is loaded. Its files are hard links to cached objects."""

import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pybackend_addons.storage.object_cache import ModelObjects
from pybackend_addons.storage.remote_files import RemoteFile, RemoteModel

_ENTERED = 0o755  # models' processes may be other users

Entries = Mapping[str, Mapping[str, RemoteFile]]
"""Files by path below the model, by the entry of the model's directory in which they lie, or which they are."""


class LocalModel:
    """The directory of one model. All methods block.

    A version's directory is replaced as a whole, and only if one of its files has changed, so unchanged versions need
    no reload. ``staging`` is on the same file system, for what is not complete.
    """

    def __init__(self, directory: Path, staging: Path) -> None:
        self.directory = directory
        self._staging = staging
        self._wanted: Entries = {}
        self._has: dict[str, dict[str, str]] = {}

    @property
    def is_empty(self) -> bool:
        """True if nothing was put there yet."""
        return not self._has

    def draft(self, model: RemoteModel, objects: ModelObjects) -> Path:
        """A temporary directory with the model's name and the files outside of version directories."""
        parent = self._staging / secrets.token_hex(8)
        directory = parent / model.name
        self._fill(directory, model.shared(), objects)
        for version in model.versions:
            os.mkdir(directory / version)
        return directory

    def put(self, entries: Entries, objects: ModelObjects, in_use: Collection[str]) -> None:
        """Make the directory hold these files.

        Files of versions ``in_use`` stay although they are not wanted any more, until :meth:`tidy`.
        """
        _make(self.directory)
        self._wanted = entries
        for entry, files in entries.items():
            contents = {path: file.identity for path, file in files.items()}
            if self._has.get(entry) == contents or (not files and entry in in_use):
                continue
            self._replace(entry, files.values(), objects)
            self._has[entry] = contents
        self._remove(set(self._has) - set(entries))

    def tidy(self, in_use: Collection[str]) -> None:
        """Remove the files of versions that are neither wanted nor in use; their directories stay."""
        for entry in {entry for entry in self._has if self._has[entry] and not self._wanted[entry]} - set(in_use):
            self._remove({entry})
            _make(self.directory / entry)
            self._has[entry] = {}

    def remove(self) -> None:
        self._wanted = {}
        self._has.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _replace(self, entry: str, files: Iterable[RemoteFile], objects: ModelObjects) -> None:
        parent = self._staging / secrets.token_hex(8)
        try:
            self._fill(parent / "new", files, objects)
            _make(parent / "new" / entry, only_if=not (parent / "new" / entry).exists())
            target = self.directory / entry
            with suppress(FileNotFoundError):
                os.rename(target, parent / "old")
            os.rename(parent / "new" / entry, target)
        finally:
            shutil.rmtree(parent, ignore_errors=True)

    def _remove(self, entries: Iterable[str]) -> None:
        parent = self._staging / secrets.token_hex(8)
        _make(parent)
        for entry in entries:
            with suppress(FileNotFoundError):
                os.rename(self.directory / entry, parent / entry)
            self._has.pop(entry, None)
        shutil.rmtree(parent, ignore_errors=True)

    def _fill(self, directory: Path, files: Iterable[RemoteFile], objects: ModelObjects) -> None:
        _make(directory)
        made = {directory}
        for file in files:
            target = directory / file.path.partition("/")[2]
            for parent in reversed(target.parents):
                if parent not in made and directory in parent.parents:
                    _make(parent)
                    made.add(parent)
            _link(objects.path(file), target)


def entries_of(model: RemoteModel, files: Iterable[RemoteFile]) -> dict[str, dict[str, RemoteFile]]:
    """Arrange some files of a model; its versions have an entry even if none of their files is among them."""
    entries: dict[str, dict[str, RemoteFile]] = {version: {} for version in model.versions}
    for file in files:
        path = file.path.partition("/")[2]
        entries.setdefault(path.partition("/")[0], {})[path] = file
    return entries


def _make(directory: Path, *, only_if: bool = True) -> None:
    if only_if:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(_ENTERED)  # regardless of the umask


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # the file system has no hard links, or no more of them
        shutil.copy2(source, target)
