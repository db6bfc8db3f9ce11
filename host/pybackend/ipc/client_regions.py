"""The table of the regions that clients have registered."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.region import RegionPart, unknown_region_error
from pybackend.ipc.client_region import ClientRegion

MOST_REGIONS = 1024
"""Each takes two descriptors of the server, and one or two of each process that uses it."""

LONGEST_NAME = 1024
"""Characters of a region's name."""


class ClientRegions:
    """Registers, finds and forgets regions; see :class:`pybackend.inference.region.RegionFinder`.

    Args:
        enabled: False refuses clients that register.
        is_reserved: True for a descriptor that must be left for other purposes.
    """

    def __init__(self, *, enabled: bool, is_reserved: Callable[[int], bool] = lambda _descriptor: False) -> None:
        self._enabled = enabled
        self._is_reserved = is_reserved
        self._regions: dict[str, ClientRegion] = {}

    def check_enabled(self) -> None:
        """Refuse a client that registers or unregisters regions of a server that does not allow it.

        Raises:
            InferenceError: UNSUPPORTED.
        """
        if not self._enabled:
            raise InferenceError(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
                ErrorCode.UNSUPPORTED,
            )

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open a shared memory object and register a part of it.

        Args:
            name: the region's name in requests.
            key: the name of the object, with or without a leading slash.
            offset: start of the region in the object, in bytes.
            nbytes: size of the region.

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
        """Forget a region, or all regions if the name is empty; requests that use it finish. Unknown names are ignored.

        Raises:
            InferenceError: UNSUPPORTED, the server does not allow it.
        """
        self.check_enabled()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str) -> list[ClientRegion]:
        """A region, or all regions if the name is empty, in the order of registration.

        Raises:
            InferenceError: NOT_FOUND, there is no such region.
        """
        if not name:
            return list(self._regions.values())
        region = self._regions.get(name)
        if region is None:
            raise InferenceError(f"Unable to find system shared memory region: '{name}'", ErrorCode.NOT_FOUND)
        return [region]

    def check_cuda_status(self, name: str) -> None:
        """Refuse a question about a region in the memory of a GPU, of which there are none; ``""`` asks for all.

        Raises:
            InferenceError: NOT_FOUND, there is no such region.
        """
        if not name:
            return
        if name in self._regions:
            raise InferenceError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory",
                ErrorCode.NOT_FOUND,
            )
        raise InferenceError(f"Unable to find cuda shared memory region: '{name}'", ErrorCode.NOT_FOUND)

    def refuse_cuda(self, name: str) -> None:
        """Refuse a client that registers memory of a GPU.

        Raises:
            InferenceError: always.
        """
        self.check_enabled()
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
