"""Reads files that a model's author has put somewhere: regular files up to a size limit, nothing else.

Other kinds of files are never opened: a FIFO would block, a device could do anything. Nor does opening wait for another
process that holds a lease on the file.
"""

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 1024 * 1024
_LEADS_OUT = -1
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileRefused(OSError):
    """The server refuses to read a file; ``strerror`` gives the reason, as a clause about the file."""

    def __init__(self, number: int, reason: str, path: object) -> None:
        super().__init__(number, reason, str(path))


def read_beneath(directory: Path, name: str, most_bytes: int) -> bytes:
    """Read a file of a model's directory. Blocking: not for the event loop.

    Raises OSError: the file cannot be read; FileRefused if it is outside the directory, not a regular file, or too
    large.

    Args:
        directory: the model's; it may be a link, because the operator has put it there.
        name: relative to it. Links are followed as long as they stay in the directory, as those of a ConfigMap do.
    """
    path = directory / name
    with _opened(_look_beneath(directory, name), path) as file:
        return _read(file, path, most_bytes)


def open_file_beneath(directory: Path, name: str) -> BinaryIO:
    """Open a file of a model's directory for reading; arguments and errors as in :func:`read_beneath`."""
    return _opened(_look_beneath(directory, name), directory / name)


def read_start_beneath(directory: Path, name: str, most_bytes: int) -> bytes:
    """Read the first bytes of a file of a model's directory; arguments and errors as in :func:`read_beneath`."""
    with _opened(_look_beneath(directory, name), directory / name) as file:
        return _take(file, most_bytes)


def is_file_beneath(directory: Path, name: str) -> bool:
    """Whether a path is a regular file of a model's directory; True for a path that leads out, which is not followed.

    A model's process opens such a path with its own rights, or is refused. Blocking: not for the event loop.

    Raises OSError: the kind of file cannot be determined.
    """
    kind = _kind_beneath(directory, name)
    return kind in {stat.S_IFREG, _LEADS_OUT}


def exists_beneath(directory: Path, name: str) -> bool:
    """Whether there is a file of any kind, as in :func:`is_file_beneath`; False if that cannot be determined."""
    try:
        return _kind_beneath(directory, name) is not None
    except OSError:
        return False


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a regular file at any place. Blocking: not for the event loop.

    Raises OSError: the file cannot be read; FileRefused if it is not a regular file, or too large.
    """
    with open_regular(path) as file:
        return _read(file, path, most_bytes)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file at any place for reading. Blocking: not for the event loop.

    Raises OSError: the file cannot be opened; FileRefused if it is not a regular file.
    """
    return _opened(os.open(path, os.O_PATH | os.O_CLOEXEC), path)


def _kind_beneath(directory: Path, name: str) -> int | None:
    """Return the kind of file, None if there is none."""
    try:
        found = _look_beneath(directory, name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.EXDEV:
            return _LEADS_OUT
        raise
    try:
        return stat.S_IFMT(os.fstat(found).st_mode)
    finally:
        os.close(found)


def _look_beneath(directory: Path, name: str) -> int:
    top = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(top, name)
    except OSError as error:
        if error.errno == errno.EXDEV:
            reason = f"it leads out of {directory}, and the server reads only a model's own files: put a copy there"
            raise FileRefused(errno.EXDEV, reason, directory / name) from None
        raise
    finally:
        os.close(top)


def _opened(found: int, path: Path) -> BinaryIO:
    """Open the file behind a descriptor if it is a regular file; closes the descriptor."""
    try:
        kind = stat.S_IFMT(os.fstat(found).st_mode)
        if kind == stat.S_IFDIR:
            raise FileRefused(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if kind != stat.S_IFREG:
            raise FileRefused(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a regular file", path)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        # By its descriptor: the path may lead elsewhere by now.
        return open(os.open(f"/proc/self/fd/{found}", flags), "rb")
    except BlockingIOError:
        reason = "another process holds a lease on it and was asked to release it: try again"
        raise FileRefused(errno.EWOULDBLOCK, reason, path) from None
    finally:
        os.close(found)


def _read(file: BinaryIO, path: Path, most_bytes: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size <= most_bytes:
        content = _take(file, most_bytes + 1)
        size = max(size, len(content))
        if size <= most_bytes:
            return content
    raise FileRefused(errno.EFBIG, f"it has {size} bytes, more than the {most_bytes} that it may have", path)


def _take(file: BinaryIO, most_bytes: int) -> bytes:
    """Read up to this many bytes; memory grows with the bytes read, whatever size the file claims."""
    chunks = []
    while most_bytes > 0 and (chunk := file.read(min(most_bytes, _CHUNK_BYTES))):
        chunks.append(chunk)
        most_bytes -= len(chunk)
    return b"".join(chunks)


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

    Raises OSError: the path does not exist; EXDEV if it leads out of the directory.
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
