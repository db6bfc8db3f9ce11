"""One shared memory segment without a name: made by the host, handed to stubs by descriptor."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from itertools import count

import posix_ipc

from pybackend.errors import ErrorCode, InferenceError
from pybackend_wire.errors import RemoteProtocolError

# From linux/fcntl.h; the fcntl module has them only since 3.8 on some builds.
_F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4

HAS_MEMFD = hasattr(os, "memfd_create")

_numbers = count(1)


class Segment:
    """A block of memory that host and stub share.

    A sealed segment (memfd) cannot change its size, so the host may map it without fear of SIGBUS. Where memfd is not to
    be had, the segment is an unlinked POSIX object: allocated up front, and read and written with system calls only.

    Attributes:
        number: unique in this process, never :data:`~pybackend_wire.messages.TAIL`.
        size_bytes: fixed for life.
        descriptor: for sending to a stub.
        sealed: True if :meth:`view` may be used.
    """

    def __init__(self, size_bytes: int) -> None:
        self.number = next(_numbers)
        self.size_bytes = size_bytes
        self.descriptor, self._view = _create(size_bytes)
        self.sealed = self._view is not None

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes themselves, writable; sealed segments only."""
        assert self._view is not None
        return self._view[offset : offset + nbytes]

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Bytes for reading: the memory itself where that is safe, else a copy.

        Raises:
            RemoteProtocolError: a stub has made the segment smaller.
        """
        if self._view is not None:
            return self._view[offset : offset + nbytes]
        data = os.pread(self.descriptor, nbytes, offset)
        if len(data) != nbytes:
            raise RemoteProtocolError("a segment of tensor memory was cut short")
        return memoryview(data)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes into the segment."""
        if self._view is not None:
            self._view[offset : offset + len(data)] = data
        else:
            os.pwrite(self.descriptor, data, offset)

    def close(self) -> None:
        """Close the descriptor. The mapping goes when the last view of it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self._view = None


def _create(size_bytes: int) -> tuple[int, memoryview | None]:
    """A descriptor, and a view of what it stands for if it is sealed."""
    try:
        descriptor = _create_sealed(size_bytes) if HAS_MEMFD else None
        if descriptor is None:
            return _create_unsealed(size_bytes), None
        try:
            return descriptor, memoryview(mmap.mmap(descriptor, size_bytes))
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise InferenceError(
            f"cannot make a tensor segment of {size_bytes} bytes: {error.strerror}", ErrorCode.UNAVAILABLE
        ) from error


def _create_sealed(size_bytes: int) -> int | None:
    """A descriptor, None if the kernel or a sandbox around this process does not offer memfd."""
    try:
        descriptor = os.memfd_create("pybackend-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EPERM, errno.EINVAL}:
            return None
        raise
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _create_unsealed(size_bytes: int) -> int:
    shared = posix_ipc.SharedMemory(None, posix_ipc.O_CREX, size=size_bytes)
    try:
        shared.unlink()
        # A full /dev/shm must show here as an error, not later as SIGBUS.
        os.posix_fallocate(shared.fd, 0, size_bytes)
    except OSError:
        shared.close_fd()
        raise
    os.set_inheritable(shared.fd, False)
    return int(shared.fd)
