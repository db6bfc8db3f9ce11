"""Model files sent with a load request: they form a temporary model directory, kept as long as it is used.

It lies in a private directory of the server, where other models can neither read nor write.
"""

import asyncio
import os
import posixpath
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.sandbox.removal import open_directory
from pybackend.sandbox.runtime_directory import RuntimeDirectory

FILE_PREFIX = "file:"

MOST_FILES = 10_000
"""Limit on the files of one load."""

MOST_BYTES = 16 * 1024 * 1024 * 1024
"""Limit on the files of all loads together that are in use, on disk."""

_PASSED_BY_OTHERS, _READ_BY_OTHERS, _ENTERED = 0o711, 0o644, 0o111

FileContent = bytes | bytearray | memoryview
FileContents = Mapping[str, FileContent]
"""Contents by key, each key ``file:<path in the model's folder>``."""


def check_keys(files: FileContents) -> None:
    """Reject keys that are not file paths."""
    for key in files:
        if not key.startswith(FILE_PREFIX):
            raise InferenceError(
                f"unrecognized load parameter '{key}'. Write a file's path as '{FILE_PREFIX}<path in the model's "
                f"folder>', e.g. '{FILE_PREFIX}1/model.py'",
                ErrorCode.INVALID_ARG,
            )


def override_paths(files: FileContents) -> dict[str, PurePosixPath]:
    """The path of each file in the model directory, by key."""
    paths = {key: _inside(key) for key in files}
    taken = set(paths.values())
    if len(taken) < len(paths):
        raise ModelLoadError("several of the files given have the same path")
    for key, path in paths.items():
        if not taken.isdisjoint(path.parents):
            raise ModelLoadError(f"'{key}' lies below a path that is a file itself")
    return paths


def _inside(key: str) -> PurePosixPath:
    # As the reference does, take a path that begins with a slash as one that begins in the model's folder.
    text = key.removeprefix(FILE_PREFIX).lstrip("/")
    path = posixpath.normpath(text)  # lexical: the folder will be new, and contain no links
    if "\0" in text or text.endswith("/") or path.split("/")[0] in {".", ".."}:
        raise ModelLoadError(f"'{key}' is no path inside the model's folder, such as '{FILE_PREFIX}1/model.py'")
    return PurePosixPath(path)


class OverrideDirectories:
    """The model directories made from files that came with load requests."""

    def __init__(self, directory: RuntimeDirectory) -> None:
        self._directory = directory
        self._closed = False
        self._users: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._writing = threading.Lock()

    def make(self, model_name: str, files: FileContents) -> Path:
        """Write files into a new directory named after the model. Blocking: not for the event loop."""
        paths = override_paths(files)
        nbytes = sum(map(len, files.values()))
        with self._writing:
            if self._closed:
                raise ModelLoadError("the server is stopping", ErrorCode.UNAVAILABLE)
            self._check_size(len(files), nbytes)
            try:
                directory = self._make(model_name, {path: files[key] for key, path in paths.items()})
            except OSError as error:
                raise ModelLoadError(f"the files given cannot be written: {error.strerror}") from error
            except ValueError as error:  # an invalid file name
                raise ModelLoadError(f"the files given cannot be written: {error}") from error
            self._sizes[directory] = nbytes
            return directory

    def _check_size(self, count: int, nbytes: int) -> None:
        if count > MOST_FILES:
            raise ModelLoadError(f"{count} files are given, and the limit is {MOST_FILES}: pack them into one")
        used = sum(self._sizes.values())
        if used + nbytes > MOST_BYTES:
            raise ModelLoadError(
                f"the files given have {nbytes} bytes, and those of other loads {used}: together they exceed the limit of "
                f"{MOST_BYTES}. Unload models that were loaded with files, or put the model into the repository"
            )

    def _make(self, model_name: str, contents: Mapping[PurePosixPath, FileContent]) -> Path:
        parent = self._directory.make(_PASSED_BY_OTHERS)
        try:
            descriptor = open_directory(str(parent))
            try:
                for path, content in contents.items():
                    _write(descriptor, (model_name, *path.parts), content)
            finally:
                os.close(descriptor)
        except BaseException:  # whatever ended it: half a model must not stay
            self._directory.remove(parent)
            raise
        return parent / model_name

    def holds(self, directory: Path) -> bool:
        """True if a directory was made here."""
        return self._directory.contains(directory)

    def hold(self, directory: Path) -> None:
        """Count a user of a directory; does nothing for directories that were not made here."""
        if self.holds(directory):
            self._users[directory] = self._users.get(directory, 0) + 1

    async def let_go(self, directory: Path) -> None:
        """Release one user's hold; the last release removes the directory."""
        users = self._users.pop(directory, 0)
        if users > 1:
            self._users[directory] = users - 1
        elif users:
            await asyncio.to_thread(self._directory.remove, directory.parent)
            self._sizes.pop(directory, None)

    def remove_abandoned(self) -> None:
        """Remove directories left behind by servers that no longer run. Blocking."""
        self._directory.remove_abandoned()

    def close(self) -> None:
        """Remove everything; no directory is made afterwards."""
        with self._writing:
            self._closed = True
            self._directory.close()


def _write(top: int, parts: tuple[str, ...], content: FileContent) -> None:
    """Write a file below a directory, readable by model processes, which may run as other users."""
    descriptor = os.dup(top)
    try:
        for name in parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=descriptor)
            inner = open_directory(name, descriptor)
            os.close(descriptor)
            descriptor = inner
            os.fchmod(descriptor, _READ_BY_OTHERS | _ENTERED)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file_descriptor = os.open(parts[-1], flags, 0o600, dir_fd=descriptor)
        with open(file_descriptor, "wb") as file:
            os.fchmod(file_descriptor, _READ_BY_OTHERS)
            file.write(content)
    finally:
        os.close(descriptor)
