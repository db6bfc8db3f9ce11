"""Files that come with a load in place of a repository's: a model directory of their own, for as long as it is served.

They lie in one private directory per process, locked by it. A server that was killed leaves its directory behind,
unlocked: the next one removes it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import posixpath
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError

FILE_PREFIX = "file:"
_DIRECTORY_PREFIX = "pybackend-models-"

FileContent = bytes | bytearray | memoryview
FileContents = Mapping[str, FileContent]
"""Contents by key, each key ``file:<path in the model's folder>``."""


def check_keys(files: FileContents) -> None:
    """Refuse what is no file.

    Raises:
        InferenceError: INVALID_ARG.
    """
    for key in files:
        if not key.startswith(FILE_PREFIX):
            raise InferenceError(
                f"unrecognized load parameter '{key}'. Write a file's path as '{FILE_PREFIX}<path in the model's "
                f"folder>', e.g. '{FILE_PREFIX}1/model.py'",
                ErrorCode.INVALID_ARG,
            )


def override_paths(files: FileContents) -> dict[str, PurePosixPath]:
    """Where each file belongs, by key.

    Raises:
        ModelLoadError: a path leaves the model's folder, or another file has taken it.
    """
    paths = {key: _inside(key) for key in files}
    taken = set(paths.values())
    if len(taken) < len(paths):
        raise ModelLoadError("several of the files given have the same path")
    for key, path in paths.items():
        if not taken.isdisjoint(path.parents):
            raise ModelLoadError(f"'{key}' lies below a path that is a file itself")
    return paths


def _inside(key: str) -> PurePosixPath:
    text = key.removeprefix(FILE_PREFIX)
    path = posixpath.normpath(text)  # of names alone: the folder will be new, and hold no links
    if "\0" in text or text.endswith("/") or path.startswith("/") or path.split("/")[0] in {".", ".."}:
        raise ModelLoadError(f"'{key}' is no path inside the model's folder, such as '{FILE_PREFIX}1/model.py'")
    return PurePosixPath(path)


class OverrideDirectories:
    """The model directories that were made of such files."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock_descriptor = -1
        self._count = 0
        self._closed = False
        self._users: dict[Path, int] = {}
        self._writing = threading.Lock()

    def make(self, model_name: str, files: FileContents) -> Path:
        """Write files into a new directory whose name is the model's. Blocking: not for the event loop.

        Raises:
            ModelLoadError: as :func:`override_paths`, or they cannot be written.
        """
        paths = override_paths(files)
        with self._writing:
            if self._closed:
                raise ModelLoadError("the server is stopping", ErrorCode.UNAVAILABLE)
            try:
                return self._make(model_name, {path: files[key] for key, path in paths.items()})
            except OSError as error:
                raise ModelLoadError(f"the files given cannot be written: {error.strerror}") from error
            except ValueError as error:  # a name that no file can have
                raise ModelLoadError(f"the files given cannot be written: {error}") from error

    def _make(self, model_name: str, contents: Mapping[PurePosixPath, FileContent]) -> Path:
        if self._root is None:
            self._root, self._lock_descriptor = _locked_directory()
        self._count += 1
        parent = self._root / str(self._count)
        directory = parent / model_name
        try:
            directory.mkdir(parents=True)
            for path, content in contents.items():
                _write(directory / path, content)
        except BaseException:
            shutil.rmtree(parent, ignore_errors=True)
            raise
        return directory

    def hold(self, directory: Path) -> None:
        """Somebody uses a directory from now on; nothing happens for one that was not made here."""
        if self._root is not None and self._root in directory.parents:
            self._users[directory] = self._users.get(directory, 0) + 1

    async def let_go(self, directory: Path) -> None:
        """One user fewer; the last one's end removes the directory."""
        users = self._users.pop(directory, 0)
        if users > 1:
            self._users[directory] = users - 1
        elif users:
            await asyncio.to_thread(shutil.rmtree, directory.parent, ignore_errors=True)

    def close(self) -> None:
        """Remove everything; no directory is made from now on."""
        with self._writing:
            self._closed = True
            root, self._root = self._root, None
            if root is not None:
                shutil.rmtree(root, ignore_errors=True)
                os.close(self._lock_descriptor)


def _write(path: Path, content: FileContent) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb", opener=_private) as file:
        file.write(content)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _locked_directory() -> tuple[Path, int]:
    """A new directory and the descriptor that holds its lock."""
    while True:
        root = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX))
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root, lock
        os.close(lock)  # another server took it for a dead one's before it was locked


def remove_abandoned() -> None:
    """Remove the directories of this user's servers that do not run any more."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_DIRECTORY_PREFIX) and entry.is_dir(follow_symlinks=False):
                _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    with suppress(OSError):  # somebody else's, or gone by now
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
