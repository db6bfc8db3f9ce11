"""Removes a directory filled by untrusted code, through descriptors, so that nothing outside it is ever touched.

It follows no links and enters no mounts. Neither the depth of the directories nor the number of files costs memory or
descriptors: nested directories are moved up before they are emptied.
"""

import os
import secrets
import stat
from itertools import islice

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 1000
"""Entries to read at a time: a directory may have more than fit into memory."""

_MOST_PASSES = 100_000
"""A bound in case a process keeps creating files there; it allows a hundred million."""


def open_directory(name: str, parent: int | None = None) -> int:
    """Open a directory and return a descriptor; a link to a directory is refused."""
    return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)


def remove_tree(name: str, parent: int) -> None:
    """Remove an entry of a directory, with everything below it. Blocking.

    Args:
        name: without slashes; a link is removed itself.

    Raises:
        OSError: something could not be removed, the first of several; everything else is gone.
    """
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    top = _open_own(name, parent)
    try:
        _Emptying(top, _mount_of(parent)).run()
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


class _Emptying:
    def __init__(self, top: int, mount: str) -> None:
        self._top = top
        self._mount = mount
        self._failure: OSError | None = None

    def run(self) -> None:
        if _mount_of(self._top) != self._mount:
            raise OSError("something is mounted there")
        self._empty(self._top)
        if self._failure is not None:
            raise self._failure

    def _empty(self, directory: int) -> None:
        for _ in range(_MOST_PASSES):
            if not self._pass_through(directory):
                return

    def _pass_through(self, directory: int) -> bool:
        """Remove or move up some entries; True if another pass may remove more."""
        with os.scandir(directory) as entries:
            batch = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _BATCH)]
        done = 0
        for name, is_directory in batch:
            try:
                if not is_directory:
                    os.unlink(name, dir_fd=directory)
                elif directory == self._top:
                    self._remove_directory(name)
                else:
                    _allow(name, directory)  # moving a directory changes it
                    os.rename(name, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=self._top)
            except FileNotFoundError:
                done += 1  # another process removed it
            except OSError as error:
                self._failure = self._failure or error
            else:
                done += 1
        return done > 0

    def _remove_directory(self, name: str) -> None:
        directory = _open_own(name, self._top)
        try:
            if _mount_of(directory) != self._mount:
                raise OSError(f"something is mounted at '{name}' in it")
            self._empty(directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=self._top)


def _open_own(name: str, parent: int) -> int:
    """Open a directory regardless of its mode; returns a descriptor."""
    _allow(name, parent)
    return open_directory(name, parent)


def _allow(name: str, parent: int) -> None:
    """Let this user change a directory: the code that filled it may have removed the permission."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # this very directory, even if the name has moved on
    finally:
        os.close(handle)


def _mount_of(descriptor: int) -> str:
    """Return the id of a descriptor's mount; bind mounts of the same file system have different ids."""
    with open(f"/proc/self/fdinfo/{descriptor}") as file:
        return next((line for line in file if line.startswith("mnt_id:")), "")
