"""Shared memory of clients: each region is opened for the server and for models' processes, and listed in a table."""

import os
import stat
import weakref
from collections.abc import Callable
from typing import NamedTuple

import posix_ipc

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.region import Region, RegionPart, unknown_region_error
from pybackend.inference.tensor import Buffer
from pybackend.ipc.segment import RESERVED_PREFIX, new_segment_number

_LONGEST_KEY_BYTES = 255
"""The longest name of a file."""


class Access(NamedTuple):
    """One way to a region's bytes."""

    number: int  # under which stubs know it, unique in this process
    descriptor: int  # for sending to a stub. It permits no more than this way.


class ClientRegion(Region):
    """A registered region, with its object.

    Its descriptors are closed, and stubs let go of it, when nothing refers to it any more: neither the table of
    registered regions nor a request. A shared memory object of the same name that is created later is another one.
    """

    def __init__(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open the object.

        Raises:
            InferenceError: INVALID_ARG, the key is invalid or the object too small. INTERNAL, it cannot be opened.
        """
        super().__init__(name)
        self.key = key  # the name of the shared memory object, as the client gave it
        self.offset = offset  # start of the region in the object, in bytes
        self.nbytes = nbytes
        writing = _open(name, key)
        try:
            _check_size(name, os.fstat(writing).st_size, offset, nbytes)
            # The same object, whatever its name stands for by now. A stub that only reads cannot write through this
            # one.
            reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(writing)
            raise _unopened(key, str(error.strerror)) from error
        except InferenceError:
            os.close(writing)
            raise
        self.reading = Access(new_segment_number(), reading)  # for stubs that read inputs
        self.writing = Access(new_segment_number(), writing)  # for stubs that write outputs
        weakref.finalize(self, _close, reading, writing).atexit = False

    @property
    def end(self) -> int:
        """Offset in the object behind the region's last byte."""
        return self.offset + self.nbytes

    def write(self, offset: int, data: Buffer) -> None:
        """Copy bytes into the object, with system calls: one that has shrunk must not kill this process.

        Raises:
            InferenceError: INVALID_ARG, the object has become too small. UNAVAILABLE, there is no memory.
        """
        descriptor = self.writing.descriptor
        view = memoryview(data)
        try:
            if os.fstat(descriptor).st_size < offset + len(view):
                raise InferenceError(
                    f"shared memory region '{self.name}' has been made smaller since it was registered: output does not "
                    "fit. Unregister it and register it again",
                    ErrorCode.INVALID_ARG,
                )
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            raise InferenceError(
                f"cannot write to shared memory region '{self.name}': {error.strerror}", ErrorCode.UNAVAILABLE
            ) from error


def _open(name: str, key: str) -> int:
    """Open a shared memory object for reading and writing; returns its descriptor."""
    bare = key.lstrip("/")
    if not bare:
        raise InferenceError(
            f"cannot register shared memory region '{name}' - invalid shm key '{key}': write the name of a shared memory "
            "object, such as /input",
            ErrorCode.INVALID_ARG,
        )
    if bare.startswith(RESERVED_PREFIX):
        raise InferenceError(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix "
            f"'{RESERVED_PREFIX}'",
            ErrorCode.INVALID_ARG,
        )
    if (
        "/" in key.removeprefix("/")
        or "\0" in bare
        or bare in {".", ".."}
        or len(os.fsencode(bare)) > _LONGEST_KEY_BYTES
    ):
        raise _unopened(key, "the name of a shared memory object has no '/' but the first, and at most 255 bytes")
    try:
        shared = posix_ipc.SharedMemory("/" + bare)
    except posix_ipc.ExistentialError:
        raise _unopened(key, "there is no shared memory object of this name on the server's machine") from None
    except posix_ipc.PermissionsError:
        advice = f"the server's user ({os.geteuid()}) may not read and write it. Its owner can permit that"
        raise _unopened(key, advice) from None
    except (OSError, ValueError, posix_ipc.Error) as error:
        raise _unopened(key, str(error)) from error
    descriptor = int(shared.fd)
    os.set_inheritable(descriptor, False)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unopened(key, "it is no shared memory object")
    return descriptor


def _check_size(name: str, object_bytes: int, offset: int, nbytes: int) -> None:
    if nbytes <= 0 or offset < 0:
        reason = "the region must have at least one byte"
    elif offset + nbytes > object_bytes:
        reason = f"offset and byte_size end at byte {offset + nbytes}, and the shared memory object has {object_bytes}"
    else:
        return
    raise InferenceError(
        f"failed to register shared memory region '{name}': invalid args: {reason}", ErrorCode.INVALID_ARG
    )


def _unopened(key: str, reason: str) -> InferenceError:
    return InferenceError(f"Unable to open shared memory region: '{key}': {reason}")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


MOST_REGIONS = 1024
"""Each takes two descriptors of the server, and one or two of each process that uses it."""

LONGEST_NAME = 1024
"""Characters of a region's name."""


class ClientRegions:
    """Registers, finds and forgets regions; see :data:`pybackend.inference.region.FindRegion`."""

    def __init__(self, *, enabled: bool, is_reserved: Callable[[int], bool] = lambda _descriptor: False) -> None:
        self._enabled = enabled
        self._is_reserved = is_reserved
        self._regions: dict[str, ClientRegion] = {}

    def check_enabled(self) -> None:
        """Refuse a client that registers or unregisters regions of a server that does not allow it."""
        if not self._enabled:
            raise InferenceError(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
                ErrorCode.UNSUPPORTED,
            )

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open a shared memory object and register a part of it.

        Args:
            key: the name of the object, with or without a leading slash.

        Raises:
            InferenceError: UNSUPPORTED, the server does not allow it. ALREADY_EXISTS, the name is taken. UNAVAILABLE,
                there are too many regions. INVALID_ARG or INTERNAL, as for :class:`ClientRegion`.
        """
        self.check_enabled()
        if name in self._regions:
            raise InferenceError(f"shared memory region '{name}' already in manager", ErrorCode.ALREADY_EXISTS)
        if not 0 < len(name) <= LONGEST_NAME:
            raise InferenceError(
                f"the name of a shared memory region has 1 to {LONGEST_NAME} characters, this one has {len(name)}",
                ErrorCode.INVALID_ARG,
            )
        if len(self._regions) >= MOST_REGIONS:
            raise _too_many(name, f"{MOST_REGIONS} regions are registered, which is the limit")
        region = ClientRegion(name, key, offset, nbytes)
        if self._is_reserved(max(region.reading.descriptor, region.writing.descriptor)):
            del region  # the error's traceback would keep it
            raise _too_many(name, "the server has no descriptors left for it")
        self._regions[name] = region

    def unregister(self, name: str) -> None:
        """Forget a region, or all regions if the name is empty; requests that use it finish.

        Unknown names are ignored.
        """
        self.check_enabled()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str) -> list[ClientRegion]:
        """A region, or all regions if the name is empty, in the order of registration."""
        if not name:
            return list(self._regions.values())
        region = self._regions.get(name)
        if region is None:
            raise InferenceError(f"Unable to find system shared memory region: '{name}'", ErrorCode.NOT_FOUND)
        return [region]

    def check_cuda_status(self, name: str) -> None:
        """Refuse a question about a region in the memory of a GPU, of which there are none; ``""`` asks for all."""
        if not name:
            return
        if name in self._regions:
            raise InferenceError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory",
                ErrorCode.NOT_FOUND,
            )
        raise InferenceError(f"Unable to find cuda shared memory region: '{name}'", ErrorCode.NOT_FOUND)

    def refuse_cuda(self, name: str) -> None:
        """Refuse a client that registers memory of a GPU: enabling clients' shared memory would not help it."""
        raise InferenceError(
            f"failed to register CUDA shared memory region: '{name}', GPUs not supported. Register system shared memory "
            "instead",
            ErrorCode.INVALID_ARG,
        )

    def find(self, name: str, offset: int, nbytes: int) -> RegionPart:
        """A part of a region; its offset counts from the start of the shared memory object.

        Raises:
            InferenceError: NOT_FOUND, there is no such region. INVALID_ARG, the part is not within it.
        """
        region = self._regions.get(name)
        if region is None:
            raise unknown_region_error(name)
        if not 0 <= offset < region.nbytes:
            raise InferenceError(
                f"Invalid offset for shared memory region: '{name}': it is {offset}, and the region has {region.nbytes} "
                "bytes",
                ErrorCode.INVALID_ARG,
            )
        if nbytes < 0 or offset + nbytes > region.nbytes:
            raise InferenceError(
                f"Invalid offset + byte size for shared memory region: '{name}': they are {offset} + {nbytes}, and the "
                f"region has {region.nbytes} bytes",
                ErrorCode.INVALID_ARG,
            )
        return RegionPart(region, region.offset + offset, nbytes)


def _too_many(name: str, reason: str) -> InferenceError:
    return InferenceError(f"failed to register shared memory region '{name}': {reason}", ErrorCode.UNAVAILABLE)
