"""A disk that hangs: a file system whose every operation waits, mounted over a directory. Needs root and /dev/fuse."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DEVICE = "/dev/fuse"
_MNT_DETACH = 2


@contextmanager
def hanging(directory: Path) -> Iterator[None]:
    """For the length of a ``with`` block, whoever looks at the directory waits; then, what waits fails.

    Nobody answers the kernel's questions about the file system. Files that are open already are not concerned.
    """
    library = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"{_DEVICE} cannot be opened: {error.strerror}")
    place = os.fsencode(directory)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if library.mount(b"hanging", place, b"fuse", 0, options):
            pytest.skip(f"no file system can be mounted: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            library.umount2(place, _MNT_DETACH)
    finally:
        os.close(descriptor)
