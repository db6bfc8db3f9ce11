"""Memory placement that a model requests for a BLS call, and the amount of free tensor memory."""

from enum import IntEnum

from pybackend_sdk.arguments import INT64_MAX, INT64_MIN, incompatible, integer
from pybackend_sdk.runtime import current_runtime


class MemoryType(IntEnum):
    """Kinds of memory that a model can prefer."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU


class PreferredMemory:
    """Preferred placement for the outputs of a BLS request.

    Args:
        preferred_memory_type: ``TRITONSERVER_MEMORY_GPU`` or ``TRITONSERVER_MEMORY_CPU``.
        preferred_device_id: the device's number.

    Raises:
        TypeError: an argument has the wrong type.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            incompatible("PreferredMemory", "preferred_memory_type", "a TRITONSERVER_MEMORY_*", preferred_memory_type)
        self._memory_type = preferred_memory_type
        self._device_id = integer("PreferredMemory", "preferred_device_id", preferred_device_id, INT64_MIN, INT64_MAX)


class SharedMemory:
    """The tensor memory of this process, for tests that check for leaks."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()

    def free_memory(self) -> int:
        """Free bytes of tensor memory; 0 without a server, where there is no such memory."""
        return current_runtime().free_memory_bytes()


shared_memory = SharedMemory()
"""The only instance."""
