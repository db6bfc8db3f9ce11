"""Shared memory of clients on the stub's side: inputs are read from it, and outputs are written to it.

Clients may shrink such memory at any time, and touching a mapping beyond its end kills the process (SIGBUS). Therefore
bytes are copied with system calls, which only fail. A model that trusts its clients has the memory mapped instead.
"""

import mmap
import os
import threading
from typing import Any, Dict, Optional

import numpy as np

from pybackend_wire.errors import ErrorCode


class RegionError(Exception):
    """A tensor in a client's region cannot be read or written; it fails its own request only."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Region:
    """One region, opened for reading or for writing."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self.mapping: Optional[mmap.mmap] = None


class PassedRegions:
    """The regions that the host has passed on."""

    def __init__(self) -> None:
        self._regions: Dict[int, _Region] = {}
        self._lock = threading.Lock()
        self.maps = False
        """Whether outputs are copied through a mapping: faster, but a client that shrinks its region kills this
        process."""

    def attach(self, region: int, descriptor: int, size_bytes: int) -> None:
        self._regions[region] = _Region(descriptor, size_bytes)

    def detach(self, region: int) -> bool:
        """Close a region; its mapping goes with the last array that views it. False if it is none."""
        found = self._regions.pop(region, None)
        if found is None:
            return False
        os.close(found.descriptor)
        return True

    def read(self, region: int, offset: int, target: Any) -> None:
        """Copy bytes from a region. Raises RegionError if the object has become too small."""
        descriptor = self._regions[region].descriptor
        left = _octets(target)
        while left:
            count = os.preadv(descriptor, [left], offset)
            if not count:
                raise _shrunk()
            left, offset = left[count:], offset + count

    def view(self, region: int, offset: int, nbytes: int) -> memoryview:
        """Return a read-only view of bytes of a region. It stays valid after the region is detached."""
        found = self._regions[region]
        _check_size(found, offset + nbytes)
        return memoryview(self._mapped(found, mmap.ACCESS_READ))[offset : offset + nbytes]

    def write(self, region: int, offset: int, payload: Any) -> None:
        """Copy the bytes of a tensor into a region.

        Raises RegionError if the object has become too small, or there is no memory for its pages.
        """
        found = self._regions[region]
        source = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, np.uint8)
        octets = source.reshape(-1).view(np.uint8)
        _check_size(found, offset + octets.nbytes)
        if self.maps:
            target = np.frombuffer(self._mapped(found, mmap.ACCESS_WRITE), np.uint8)
            np.copyto(target[offset : offset + octets.nbytes], octets)
            return
        left = _octets(octets)
        try:
            while left:
                count = os.pwrite(found.descriptor, left, offset)
                left, offset = left[count:], offset + count
        except OSError as error:
            raise RegionError(
                ErrorCode.UNAVAILABLE, f"an output cannot be written to shared memory: {error.strerror}"
            ) from None

    def _mapped(self, region: _Region, access: int) -> mmap.mmap:
        with self._lock:
            if region.mapping is None:
                try:
                    region.mapping = mmap.mmap(region.descriptor, region.size_bytes, access=access)
                except ValueError:  # the object ends before the region does
                    raise _shrunk() from None
                except OSError as error:
                    reason = f"shared memory cannot be mapped: {error.strerror}"
                    raise RegionError(ErrorCode.UNAVAILABLE, reason) from None
            return region.mapping


def _octets(buffer: Any) -> memoryview:
    """Return a view of a buffer's bytes, whatever its elements are."""
    octets: Any = np.frombuffer(buffer, np.uint8) if len(buffer) else b""  # numpy refuses empty buffers
    return memoryview(octets)


def _check_size(region: _Region, end: int) -> None:
    if os.fstat(region.descriptor).st_size < end:
        raise _shrunk()


def _shrunk() -> RegionError:
    return RegionError(
        ErrorCode.INVALID_ARG,
        "a shared memory object has been made smaller since its region was registered, and the tensor is not within it "
        "any more",
    )
