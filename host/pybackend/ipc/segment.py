"""One shared memory segment without a name: made by the host, sent to stubs as a descriptor."""

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
from itertools import count
from weakref import WeakValueDictionary

import numpy as np
import posix_ipc

from pybackend.errors import ErrorCode, InferenceError
from pybackend_wire.errors import RemoteProtocolError

# From linux/fcntl.h; the fcntl module has them only since 3.8 in some builds.
_F_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
"""From linux/asm-generic/mman-common.h."""

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)

HAS_MEMFD = hasattr(os, "memfd_create")

RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""Names of shared memory objects that begin like this belong to servers: clients cannot register them."""

_FULL = ". Without memfd_create, tensors lie in /dev/shm: give it more room (Docker: --shm-size), or send fewer at once"

_numbers = count(1)


def new_segment_number() -> int:
    """A number that no other segment of this process has."""
    return next(_numbers)


class Segment:
    """A block of memory that host and stub share.

    A sealed segment (memfd) cannot change its size, so the host can map it without risking SIGBUS. If memfd is not
    available, the segment is an unlinked POSIX object: allocated up front, and read and written only with system calls.
    """

    def __init__(self, size_bytes: int) -> None:
        self.number = new_segment_number()  # unique in this process, never :data:`~pybackend_wire.messages.TAIL`
        self.size_bytes = size_bytes
        self.descriptor, self._view = _create(size_bytes)
        self.sealed = self._view is not None  # whether :meth:`view` may be used
        if self._view is not None:
            _mapped_segments[id(self._view.obj)] = self

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Return the bytes themselves, writable; sealed segments only."""
        assert self._view is not None
        return self._view[offset : offset + nbytes]

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes for reading: the memory itself if that is safe, otherwise a copy.

        Raises RemoteProtocolError if a stub has shrunk the segment.
        """
        if self._view is not None:
            return self._view[offset : offset + nbytes]
        data = os.pread(self.descriptor, nbytes, offset)
        if len(data) != nbytes:
            raise RemoteProtocolError("a segment of tensor memory was cut short")
        return memoryview(data)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if self._view is not None:
            self._view[offset : offset + len(data)] = data
        else:
            os.pwrite(self.descriptor, data, offset)

    def empty(self, offset: int, nbytes: int) -> None:
        """Release the memory of whole pages, which read as zeros from then on; sealed segments only."""
        assert self._view is not None
        mapping = self._view.obj
        assert isinstance(mapping, mmap.mmap)
        mapping.madvise(mmap.MADV_REMOVE, offset, nbytes)

    def close(self) -> None:
        """Close the descriptor. The mapping goes with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self._view = None


_mapped_segments: WeakValueDictionary[int, Segment] = WeakValueDictionary()
"""By the identities of their mappings."""


def place_of(view: memoryview) -> tuple[Segment, int] | None:
    """The segment of which this is a view, and the view's offset there.

    None for any other view, or if the segment was closed.
    """
    segment = _mapped_segments.get(id(view.obj))
    if segment is None or segment.descriptor < 0:
        return None
    return segment, address_of(view) - address_of(segment.view(0, 1))


def address_of(view: memoryview) -> int:
    """Where the bytes of a view lie in this process."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def _create(size_bytes: int) -> tuple[int, memoryview | None]:
    """Create a segment; returns its descriptor, and a view of it if it is sealed."""
    try:
        descriptor = _create_sealed(size_bytes) if HAS_MEMFD else None
        if descriptor is None:
            return _create_unsealed(size_bytes), None
        try:
            return descriptor, map_shared(descriptor, size_bytes)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        advice = "" if error.errno != errno.ENOSPC else _FULL
        raise InferenceError(
            f"cannot make a tensor segment of {size_bytes} bytes: {error.strerror}{advice}", ErrorCode.UNAVAILABLE
        ) from error


def map_shared(descriptor: int, size_bytes: int, *, writable: bool = True) -> memoryview:
    """Map a file; the mapping goes with its last view.

    Raises OSError if the descriptor does not allow it, or the process has no addresses left.

    ``mmap.mmap(descriptor)`` would keep a duplicate of the descriptor as long. So an anonymous mapping reserves the
    addresses, and the file is mapped over it.
    """
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    protection = mmap.PROT_READ | mmap.PROT_WRITE * writable
    if _mmap(address, size_bytes, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    view = memoryview(mapping)
    return view if writable else view.toreadonly()


def _create_sealed(size_bytes: int) -> int | None:
    """Create a memfd; returns None if the kernel or a sandbox around this process does not offer it."""
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
    # A client that names it before it is unlinked is refused because of the prefix.
    name = f"/{RESERVED_PREFIX}{secrets.token_hex(16)}"
    shared = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, size=size_bytes)
    try:
        shared.unlink()
        # A full /dev/shm must cause an error here, not SIGBUS later.
        os.posix_fallocate(shared.fd, 0, size_bytes)
    except OSError:
        shared.close_fd()
        raise
    os.set_inheritable(shared.fd, False)
    return int(shared.fd)
