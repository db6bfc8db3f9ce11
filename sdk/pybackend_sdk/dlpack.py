"""DLPack: tensor memory handed to other libraries, and theirs taken over, without a copy and without torch.

A capsule is a Python object around a C structure that names memory and a function, the deleter, which the last holder
calls exactly once. Whoever consumes a capsule renames it; a capsule that dies under its first name calls the deleter
itself. Capsules and deleters are C: the former are made by NumPy where it can (from 1.22 on), else here with ctypes.
"""

import ctypes
from ctypes import pythonapi
from enum import IntEnum
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from pybackend_sdk.error import TritonModelException
from pybackend_wire.dtypes import DATATYPES


class DeviceType(IntEnum):
    """The devices of DLPack that are told apart here."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    """Pinned host memory."""


class _TypeCode(IntEnum):
    INT = 0
    UINT = 1
    FLOAT = 2
    BFLOAT = 4
    BOOL = 6


class _Element(NamedTuple):
    """How a datatype reads in DLPack, and the NumPy type that carries it."""

    code: int
    bits: int
    carrier: str


_CODES = {"b": _TypeCode.BOOL, "i": _TypeCode.INT, "u": _TypeCode.UINT, "f": _TypeCode.FLOAT}
_ELEMENTS: Dict[str, _Element] = {
    row.name: _Element(_CODES[row.numpy.kind], row.itemsize * 8, row.numpy.str)
    for row in DATATYPES.values()
    if row.numpy is not None and row.itemsize
}
_ELEMENTS["BF16"] = _Element(_TypeCode.BFLOAT, 16, np.dtype(np.uint16).str)
_DATATYPES = {(element.code, element.bits): name for name, element in _ELEMENTS.items()}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"


def _capsule_function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    # Prototypes of our own: another library may set argtypes on ctypes.pythonapi's, which are shared.
    return ctypes.PYFUNCTYPE(result, *arguments)((name, pythonapi))


_new = _capsule_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_set_name = _capsule_function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# A destructor gets a capsule that is already dead: as a py_object it would be revived and destroyed once more.
_dying_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_call_deleter_type = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _OfferedMemory:
    """What NumPy's array interface reads: an array made of this keeps it, and the tensor in it, alive."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: object, address: int, shape: "Sequence[int]", carrier: str) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(shape),
            "typestr": carrier,
            "data": (address, False),
        }


def _export_by_numpy(owner: object, address: int, shape: "Sequence[int]", element: _Element) -> Any:
    """Let NumPy make the capsule: its destructor and deleter are C, and so safe while an exception is under way."""
    # NumPy exports no BF16, and before 1.25 no bool: an integer of that size is exported, then relabelled.
    carrier = element.carrier if element.code != _TypeCode.BOOL else "|u1"
    array: Any = np.asarray(_OfferedMemory(owner, address, shape, carrier))
    capsule = array.__dlpack__()
    managed = _ManagedTensor.from_address(_pointer(capsule, _NAME))
    managed.tensor.dtype = _DataType(element.code, element.bits, 1)
    return capsule


class _Export:
    """A structure of ours that somebody may still read, with all that it points to."""

    __slots__ = ("managed", "owner", "shape")

    def __init__(self, owner: object, address: int, shape: "Sequence[int]", element: _Element) -> None:
        self.owner = owner
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.managed = _ManagedTensor(
            _Tensor(
                address,
                _Device(DeviceType.CPU, 0),
                len(shape),
                _DataType(element.code, element.bits, 1),
                ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
                None,
                0,
            ),
            None,
            ctypes.cast(_DELETER, ctypes.c_void_p),
        )


_exports: Dict[int, _Export] = {}
"""Exports of ours by the address of their structure, which is also their ``manager_ctx``."""


# Both may run while the interpreter shuts down, when this module's names are gone: they are bound here.
def _delete(address: int, exports: "Dict[int, _Export]" = _exports) -> None:
    exports.pop(address, None)


def _destroy(
    capsule: int,
    delete: "Callable[[int], None]" = _delete,
    is_valid: "Callable[..., Any]" = _dying_is_valid,
    pointer: "Callable[..., Any]" = _dying_pointer,
    name: bytes = _NAME,
) -> None:
    if is_valid(capsule, name):
        delete(pointer(capsule, name))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_destroy)
# C code may keep pointers to these until the very end of the process: never free them.
for _kept in (_DELETER, _DESTRUCTOR, _NAME, _USED_NAME):
    pythonapi.Py_IncRef(ctypes.py_object(_kept))


def _export_by_ctypes(owner: object, address: int, shape: "Sequence[int]", element: _Element) -> Any:
    """Make the capsule here, for NumPy before 1.22.

    Its deleter is Python code, so an exception that is under way when a consumer lets go is replaced by a
    ``SystemError``: Python code that C calls cannot put it back.
    """
    export = _Export(owner, address, shape, element)
    at = ctypes.addressof(export.managed)
    export.managed.manager_ctx = at
    _exports[at] = export
    return _new(at, _NAME, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))


_export = _export_by_numpy if hasattr(np.ndarray, "__dlpack__") else _export_by_ctypes


def export_memory(owner: object, address: int, shape: "Sequence[int]", datatype: str) -> Any:
    """Offer host memory to another library.

    Args:
        owner: kept alive as long as anybody holds the capsule or what was made of it.
        address: where the elements begin, C-contiguous.
        shape: dimensions.
        datatype: wire name, any but ``BYTES``.

    Returns:
        A capsule named ``dltensor``.
    """
    return _export(owner, address, shape, _ELEMENTS[datatype])


class _ForeignMemory:
    """Memory of another library, which gets it back when the last array over it is gone."""

    __slots__ = ("__array_interface__", "_address", "_deleter")

    def __init__(self, managed: _ManagedTensor, shape: Tuple[int, ...], carrier: str) -> None:
        self._address = ctypes.addressof(managed)
        self._deleter = _call_deleter_type(managed.deleter) if managed.deleter else None
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": carrier,
            "data": ((managed.tensor.data or 0) + managed.tensor.byte_offset, False),
        }

    def __del__(self) -> None:
        if self._deleter is not None:
            self._deleter(self._address)


def import_memory(source: Any) -> "Tuple[np.ndarray, str]":
    """Take over memory that another library offers. What is refused stays with its owner.

    Args:
        source: a capsule named ``dltensor``, or an object with ``__dlpack__`` and ``__dlpack_device__``.

    Returns:
        An array over the memory (BF16 as 16-bit integers), and the datatype's wire name.

    Raises:
        TritonModelException: see ``Tensor.from_dlpack``.
    """
    capsule = source
    if not _is_capsule(source):
        if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or an object with `__dlpack__` and "
                f"`__dlpack_device__` methods, not {type(source).__name__}."
            )
        _check_device(int(source.__dlpack_device__()[0]))
        capsule = source.__dlpack__()
    if not _is_valid(capsule, _NAME):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule named 'dltensor' that has not been "
            "consumed yet: a capsule can be used only once."
        )
    managed = _ManagedTensor.from_address(_pointer(capsule, _NAME))
    _check_device(managed.tensor.device.type)
    datatype = _datatype_of(managed.tensor.dtype)
    shape = tuple(managed.tensor.shape[: managed.tensor.ndim]) if managed.tensor.ndim else ()
    _check_contiguous(managed.tensor, shape)
    _set_name(capsule, _USED_NAME)
    carrier = _ELEMENTS[datatype].carrier
    memory = _ForeignMemory(managed, shape, carrier)
    if 0 in shape:
        return np.empty(shape, np.dtype(carrier)), datatype  # the pointer may be NULL
    return np.asarray(memory), datatype


def _is_capsule(source: Any) -> bool:
    return type(source).__name__ == "PyCapsule"


def _check_device(device_type: int) -> None:
    if device_type == DeviceType.CUDA:
        raise TritonModelException(
            "GPU tensors are not supported yet: copy the tensor to host memory first, with torch by `.cpu()`."
        )
    if device_type not in (DeviceType.CPU, DeviceType.CUDA_HOST):
        raise TritonModelException(f"DLDevice type {device_type} is not support by Python backend.")


def _datatype_of(dtype: _DataType) -> str:
    if dtype.code == _TypeCode.BFLOAT and dtype.bits != 16:
        raise TritonModelException(f"Expected BF16 tensor to have 16 bits, but had: {dtype.bits}")
    datatype = _DATATYPES.get((dtype.code, dtype.bits))
    if datatype is None or dtype.lanes != 1:
        raise TritonModelException(
            f"Dtype is invalid. DLPack type code {dtype.code} with {dtype.bits} bits and {dtype.lanes} lanes has no "
            "datatype here."
        )
    return datatype


def _check_contiguous(tensor: _Tensor, shape: Tuple[int, ...]) -> None:
    if not tensor.strides or 0 in shape:
        return
    expected = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] != 1 and tensor.strides[axis] != expected:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        expected *= shape[axis]
