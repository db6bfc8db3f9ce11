"""Where tensors lie: the host's memory, by the names of the reference.

Memory that a caller's allocator brings for outputs.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np

from pybackend.in_process.errors import InvalidArgumentError, UnsupportedError
from pybackend_wire.dlpack import DlpackError, import_memory


class MemoryType(StrEnum):
    """Where tensors lie. This server has them in the host's memory."""

    CPU = "CPU"
    CPU_PINNED = "CPU_PINNED"
    GPU = "GPU"


class DLDeviceType(IntEnum):
    """Where tensors lie, by the numbers of DLPack."""

    kDLCPU = 1  # noqa: N815  the names are DLPack's
    kDLCUDA = 2  # noqa: N815
    kDLCUDAHost = 3  # noqa: N815


DeviceOrMemoryType = MemoryType | str | tuple[MemoryType | str, int] | tuple[DLDeviceType, int]
"""A kind of memory, with the number of its device: ``"cpu"``, ``"gpu:1"``, ``(MemoryType.CPU, 0)``,
``(DLDeviceType.kDLCPU, 0)``."""

_OF_DLPACK = {
    DLDeviceType.kDLCPU: MemoryType.CPU,
    DLDeviceType.kDLCUDA: MemoryType.GPU,
    DLDeviceType.kDLCUDAHost: MemoryType.CPU_PINNED,
}
_HOST = frozenset({MemoryType.CPU, MemoryType.CPU_PINNED})


def memory_of(wanted: Any) -> tuple[MemoryType, int]:
    """A kind of memory and the number of its device. Raises InvalidArgumentError: there is no such memory."""
    try:
        kind, number = wanted if isinstance(wanted, tuple) else str(wanted).split(":") if ":" in wanted else (wanted, 0)
        if not isinstance(kind, str):
            return _OF_DLPACK[DLDeviceType(kind)], int(number)
        return MemoryType[kind.upper()], int(number)
    except (KeyError, TypeError, ValueError):
        raise InvalidArgumentError(
            f"{wanted!r} is no kind of memory: write 'cpu', 'cpu_pinned' or 'gpu', or a tuple of this and the number of a device"
        ) from None


@dataclass
class MemoryBuffer:
    """Memory of a caller; ``owner`` is the object that keeps it."""

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int  # bytes
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of another library's array, such as a torch tensor on the CPU."""
        try:
            array, _ = import_memory(owner)
        except DlpackError as error:
            raise UnsupportedError(str(error)) from None
        return MemoryBuffer(array.__array_interface__["data"][0], MemoryType.CPU, 0, array.nbytes, owner)

    def view(self) -> memoryview:
        """Its bytes. Raises UnsupportedError: it is not the host's memory."""
        if self.memory_type not in _HOST:
            raise UnsupportedError(
                f"memory of type {self.memory_type} cannot be read: this server has tensors in the host's memory"
            )
        if not self.size:
            return memoryview(b"")
        octets = (ctypes.c_ubyte * self.size).from_address(self.data_ptr)
        octets.owner = self.owner  # type: ignore[attr-defined]  # as long as somebody has the view
        return memoryview(octets).cast("B")


class MemoryAllocator(ABC):
    """Brings memory for outputs; a caller's class."""

    @abstractmethod
    def allocate(self, size: int, memory_type: MemoryType, memory_type_id: int, tensor_name: str) -> MemoryBuffer:
        """Memory of at least so many bytes, preferably of this kind; for an output of this name."""


class HostAllocator(MemoryAllocator):
    """Brings arrays of NumPy."""

    def allocate(
        self, size: int, memory_type: MemoryType = MemoryType.CPU, memory_type_id: int = 0, tensor_name: str = ""
    ) -> MemoryBuffer:
        """An array of bytes, which is the owner."""
        del memory_type, memory_type_id, tensor_name
        array = np.empty(size, np.byte)
        return MemoryBuffer(array.ctypes.data, MemoryType.CPU, 0, size, array)


default_memory_allocators: dict[MemoryType, MemoryAllocator] = {MemoryType.CPU: HostAllocator()}
"""The allocators for outputs in other memory than the host's, where a request has none. A caller may add one."""


@dataclass
class OutputTarget:
    """Where a caller wants the outputs of a request, if it brings the memory."""

    allocator: MemoryAllocator
    memory_type: MemoryType
    memory_type_id: int

    @staticmethod
    def of(fields: Mapping[str, Any]) -> OutputTarget | None:
        """The place that the fields of a request name; None for copies in the host's memory.

        Raises InvalidArgumentError: nobody has such memory.
        """
        wanted, allocator = fields.get("output_memory_type"), fields.get("output_memory_allocator")
        kind, number = (MemoryType.CPU, 0) if wanted is None else memory_of(wanted)
        if allocator is None:
            if kind in _HOST:
                return None
            allocator = default_memory_allocators.get(kind)
        if allocator is None:
            raise InvalidArgumentError(
                f"outputs lie in the host's memory: output_memory_type can be {kind} only with an output_memory_allocator"
            )
        return OutputTarget(allocator, kind, number)

    def copy(self, name: str, data: memoryview) -> memoryview:
        """The bytes of an output, in memory of the allocator's."""
        buffer = self.allocator.allocate(data.nbytes, self.memory_type, self.memory_type_id, name)
        if buffer.size < data.nbytes:
            raise InvalidArgumentError(f"output '{name}' needs {data.nbytes} bytes, and got {buffer.size}")
        view = buffer.view()[: data.nbytes]
        view[:] = data
        return view
