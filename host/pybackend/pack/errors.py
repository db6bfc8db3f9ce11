"""Why an environment cannot be packed. Each kind has an exit status of its own, so that scripts can tell them apart.

PackError
├── MissingExtraError       `pybackend[pack]` is not installed
├── SpecificationError      the file says something wrong, or is none that can be packed
├── UnsolvableError         no set of packages does what the file asks for
├── UnreachableError        a channel or an index does not answer
├── OutputError             no space, or a directory that cannot be written
└── UnpackableError         an environment that would not work elsewhere
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from pybackend.errors import PybackendError


class PackError(PybackendError):
    """An environment cannot be packed; ``status`` is what the command exits with."""

    status = 1


class SpecificationError(PackError):
    """The file is missing, of no known kind, or says something wrong."""

    status = 2


class UnsolvableError(PackError):
    """No set of packages does what the file asks for: a version, a wheel or a package does not exist."""

    status = 3


class UnreachableError(PackError):
    """A channel or an index does not answer."""

    status = 4


class OutputError(PackError):
    """There is no space, or a directory cannot be written."""

    status = 5


class UnpackableError(PackError):
    """An environment that would not work in another place: editable packages, say."""

    status = 6


class MissingExtraError(PackError):
    """What packs environments is not installed."""

    status = 7


_NO_SPACE = ("No space left on device", "os error 28", "Disk quota exceeded", "os error 122")


def output_error(error: OSError, doing: str, directory: Path) -> OutputError:
    """What to say when the operating system refuses to write."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return no_space(doing, directory)
    return OutputError(f"cannot {doing}: {error.strerror or error}: {error.filename or directory}")


def no_space(doing: str, directory: Path) -> OutputError:
    """What to say when a disk is full."""
    return OutputError(
        f"cannot {doing}: no space left in {directory}: make room, or name another place (-o for the archive, "
        "--work-directory for the packages while they are put together)"
    )


_CACHE = re.compile(r"failed to (create cache directory|initialize cache)", re.IGNORECASE)


def says_not_writable(text: str) -> bool:
    """True if another program's complaint is about its cache directory."""
    return _CACHE.search(text) is not None


def cache_not_writable(message: str) -> OutputError:
    """What to say when a cache of packages cannot be written: that of a service that has no home, for example."""
    return OutputError(
        f"a cache of packages cannot be written: {message}: set HOME, or UV_CACHE_DIR and RATTLER_CACHE_DIR, to a directory that can"
    )


def says_no_space(text: str) -> bool:
    """True if another program's complaint is about a full disk."""
    return any(words in text for words in _NO_SPACE)
