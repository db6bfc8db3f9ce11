"""Opens a path that must not lead out of a directory, whatever links its author has put there.

The kernel enforces that if it can (``openat2``, Linux 5.6). If it cannot, or a seccomp profile forbids the call, this
module walks the path one name at a time through descriptors, so that renames meanwhile cannot lead out either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

_OPENAT2 = 437
"""The same on every architecture: since 424 system call numbers are shared."""

_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
_LOOK = os.O_PATH | os.O_CLOEXEC
_FORBIDDEN = frozenset({errno.ENOSYS, errno.EPERM})
_MOST_LINKS = 40
"""The kernel's own limit."""

_DEEPEST = 256
"""Directories that a walk may be below its top: each takes a descriptor."""

_MOST_TRIES = 100
"""Attempts at a walk that the kernel aborts because of a concurrent rename."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def open_beneath(directory: int, path: str) -> int:
    """Return a descriptor of a path's target without opening it (``O_PATH``); links that stay beneath are followed.

    Args:
        directory: a descriptor of the directory.

    Raises:
        OSError: the path does not exist; EXDEV if it leads out of the directory.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    try:
        return _open_by_kernel(directory, path)
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        return walk_beneath(directory, path)


def _open_by_kernel(directory: int, path: str) -> int:
    how = _OpenHow(_LOOK, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_MOST_TRIES):
        descriptor: int = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_long(directory),
            ctypes.c_char_p(os.fsencode(path or ".")),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)


def walk_beneath(directory: int, path: str) -> int:
    """Do the same as :func:`open_beneath` without the kernel's help."""
    waiting = _names(path)
    links = 0
    way = [os.dup(directory)]
    try:
        while waiting:
            name = waiting.pop()
            if name == "..":
                os.close(way.pop())
                if not way:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                continue
            found = os.open(name, _LOOK | os.O_NOFOLLOW, dir_fd=way[-1])
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                way.append(found)
                if len(way) > _DEEPEST:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
                continue
            target = _target(found)
            links += 1
            if target.startswith("/"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            waiting += _names(target)
        return way.pop()
    finally:
        for descriptor in way:
            os.close(descriptor)


def _names(path: str) -> list[str]:
    """Split a path into names, the first one last."""
    if path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _target(link: int) -> str:
    try:
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)
