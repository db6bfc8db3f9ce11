"""Errors of packing: every step raises these. Each kind has its own exit status, so that scripts can tell them apart.

PackError
├── MissingPackagesError    what packing needs was taken out of this installation
├── SpecificationError      the file contains a mistake, or cannot be packed
├── UnsolvableError         no set of packages satisfies the file
│   └── ConflictError       because its packages contradict each other
├── UnreachableError        a channel or an index is unreachable
├── OutputError             no space, or a directory is not writable
└── UnpackableError         the environment would not work elsewhere
"""

import errno
import re
from pathlib import Path

from pybackend.errors import PybackendError


class PackError(PybackendError):
    """An environment cannot be packed; ``status`` is the command's exit status."""

    status = 1


class SpecificationError(PackError):
    """The file is missing, of an unknown kind, or contains a mistake."""

    status = 2


class UnsolvableError(PackError):
    """No set of packages satisfies the file: a version, a wheel or a package does not exist."""

    status = 3


class ConflictError(UnsolvableError):
    """All packages of the file exist, and contradict each other."""


class UnreachableError(PackError):
    """A channel or an index is unreachable."""

    status = 4


class OutputError(PackError):
    """There is no space, or a directory is not writable."""

    status = 5


class UnpackableError(PackError):
    """An environment that would not work in another place, e.g. because of editable packages."""

    status = 6


class MissingPackagesError(PackError):
    """The packages needed for packing are not installed."""

    status = 7


_NO_SPACE = re.compile(r"No space left on device|os error 28|Disk quota exceeded|os error 122")
_CACHE = re.compile(r"failed to (create cache directory|initialize cache)", re.IGNORECASE)


def output_error(error: OSError, doing: str, directory: Path) -> OutputError:
    """The error for a write that the operating system refused."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _no_space(doing, directory)
    return OutputError(f"cannot {doing}: {error.strerror or error}: {error.filename or directory}")


def _no_space(doing: str, directory: Path) -> OutputError:
    return OutputError(
        f"cannot {doing}: no space left in {directory}: make room, or name another place (-o for the archive, "
        "--work-directory for the directory in which the environment is assembled)"
    )


def told_output_error(message: str, doing: str, directory: Path) -> OutputError | None:
    """The error that another program's message is about: a full disk, or a cache of packages that is not writable."""
    if _NO_SPACE.search(message):
        return _no_space(doing, directory)
    if _CACHE.search(message):
        told = ": ".join(line.strip().removeprefix("Caused by: ") for line in message.splitlines() if line.strip())
        return OutputError(
            f"a package cache is not writable: {told}: set HOME, or UV_CACHE_DIR and RATTLER_CACHE_DIR, to one that is"
        )
    return None
