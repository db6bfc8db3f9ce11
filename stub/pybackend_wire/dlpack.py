"""DLPack: shares tensor memory with other libraries in both directions, without copies and without torch.

A capsule is a Python object around a C structure. The structure names the memory and a function, the deleter, which the
last holder calls exactly once. The consumer of a capsule renames it; a capsule destroyed under its first name calls the
deleter itself. NumPy makes our capsules from 1.24 on: its destructor and deleter are C code, which is safe even while
an exception is being handled; :mod:`pybackend_wire.dlpack_capsule` cannot be. (NumPy 1.22 and 1.23 also make capsules,
but their deleter does not take the GIL: a library that calls it from another thread would corrupt the
interpreter's memory.)
"""

import ctypes
from typing import Any, Sequence, Tuple

import numpy as np

from pybackend_wire.dlpack_abi import (
    DATATYPE_NAMES,
    ELEMENTS,
    NAME,
    USED_NAME,
    DeviceType,
    Element,
    ElementType,
    ManagedMemory,
    MemoryDescription,
    TypeCode,
    capsule_is_valid,
    capsule_pointer,
    capsule_set_name,
    deleter_type,
    keep_for_ever,
)


class DlpackError(ValueError):
    """Memory that cannot be taken over; ``str()`` is a sentence."""


_NO_ELEMENTS = ctypes.c_int64()
"""Address for tensors without elements: older NumPy treats NULL as an error."""
keep_for_ever(_NO_ELEMENTS)


class _OfferedMemory:
    """Object with NumPy's array interface: an array made from it keeps it alive, and with it the tensor."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: object, address: int, shape: "Sequence[int]", carrier: str) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(shape),
            "typestr": carrier,
            "data": (address, False),
        }


def _make_capsule_by_numpy(owner: object, address: int, shape: "Sequence[int]", element: Element) -> Any:
    # NumPy exports no BF16, and no bool before 1.25: export an integer of that size, then relabel it.
    carrier = "|u1" if element.code == TypeCode.BOOL else element.carrier
    array: Any = np.asarray(_OfferedMemory(owner, address, shape, carrier))
    capsule = array.__dlpack__()
    managed = ManagedMemory.from_address(capsule_pointer(capsule, NAME))
    managed.memory.dtype = ElementType(element.code, element.bits, 1)
    return capsule


if tuple(int(part) for part in np.__version__.split(".")[:2]) >= (1, 24):
    _make_capsule = _make_capsule_by_numpy
else:
    from pybackend_wire.dlpack_capsule import make_capsule as _make_capsule


def export_memory(owner: object, address: int, shape: "Sequence[int]", datatype: str) -> Any:
    """Offer host memory to another library, as a capsule that keeps ``owner`` alive while it, or an array made from it, is in use.

    The owner is kept alive while the capsule, or an array made from it, is in use. The address is that of the first element,
    C-contiguous; 0 if there are none. Any datatype but ``BYTES``.
    """
    return _make_capsule(owner, address or ctypes.addressof(_NO_ELEMENTS), shape, ELEMENTS[datatype])


class _ForeignMemory:
    """Another library's memory; it is returned when the last array over it is gone."""

    __slots__ = ("__array_interface__", "_address", "_deleter")

    def __init__(self, managed: ManagedMemory, shape: Tuple[int, ...], carrier: str) -> None:
        self._address = ctypes.addressof(managed)
        self._deleter = deleter_type(managed.deleter) if managed.deleter else None
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": carrier,
            "data": ((managed.memory.data or 0) + managed.memory.byte_offset, False),
        }

    def __del__(self) -> None:
        if self._deleter is not None:
            self._deleter(self._address)


def check_destination(device: Any) -> None:
    """Check the ``dl_device`` of a library that asks for host memory: DLPack's type and number, or None.

    Raises BufferError: it is another device's.
    """
    if device is not None and tuple(device) != (DeviceType.CPU, 0):
        raise BufferError(
            f"The tensor lies in host memory, and a library wants it on device {tuple(device)} of DLPack: take it without a device, "
            "and copy it there, with torch by torch.from_dlpack(tensor).to('cuda')."
        )


def import_memory(source: Any) -> "Tuple[np.ndarray, str]":
    """Take over memory of a capsule named ``dltensor``, or of an object with ``__dlpack__`` and ``__dlpack_device__``.

    Returns an array over the memory (BF16 as 16-bit integers), and the datatype's wire name.
    """
    capsule = source if type(source).__name__ == "PyCapsule" else _capsule_of(source)
    if not capsule_is_valid(capsule, NAME):
        raise DlpackError(
            "Provided tensor is not supported. Tensor must be a DLPack capsule named 'dltensor' that has not been "
            "consumed yet: a capsule can be used only once."
        )
    managed = ManagedMemory.from_address(capsule_pointer(capsule, NAME))
    memory = managed.memory
    _check_device(memory.device.type)
    datatype = _datatype_of(memory.dtype)
    shape = tuple(memory.shape[: memory.ndim]) if memory.ndim else ()
    _check_contiguous(memory, shape)
    capsule_set_name(capsule, USED_NAME)
    carrier = ELEMENTS[datatype].carrier
    taken = _ForeignMemory(managed, shape, carrier)
    if 0 in shape:
        return np.empty(shape, np.dtype(carrier)), datatype  # its pointer may be NULL, and nothing reads it
    return np.asarray(taken), datatype


def _capsule_of(source: Any) -> Any:
    if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise DlpackError(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or an object with `__dlpack__` and "
            f"`__dlpack_device__` methods, not {type(source).__name__}."
        )
    _check_device(int(source.__dlpack_device__()[0]))
    return source.__dlpack__()


def _check_device(device_type: int) -> None:
    if device_type == DeviceType.CUDA:
        raise DlpackError(
            "GPU tensors are not supported yet: copy the tensor to host memory first, with torch by `.cpu()`."
        )
    if device_type not in (DeviceType.CPU, DeviceType.CUDA_HOST):
        raise DlpackError(f"DLDevice type {device_type} is not support by Python backend.")


def _datatype_of(dtype: ElementType) -> str:
    if dtype.code == TypeCode.BFLOAT and dtype.bits != ELEMENTS["BF16"].bits:
        raise DlpackError(f"Expected BF16 tensor to have 16 bits, but had: {dtype.bits}")
    datatype = DATATYPE_NAMES.get((dtype.code, dtype.bits))
    if datatype is None or dtype.lanes != 1:
        raise DlpackError(
            f"Dtype is invalid. DLPack type code {dtype.code} with {dtype.bits} bits and {dtype.lanes} lanes has no "
            "datatype here."
        )
    return datatype


def _check_contiguous(memory: MemoryDescription, shape: Tuple[int, ...]) -> None:
    if not memory.strides or 0 in shape:
        return
    expected = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] != 1 and memory.strides[axis] != expected:
            raise DlpackError(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        expected *= shape[axis]
