"""ctypes definitions of DLPack's C structures and datatypes, and of the capsules that carry them."""

import ctypes
from ctypes import pythonapi
from enum import IntEnum
from typing import Any, Callable, Dict, NamedTuple

import numpy as np

from pybackend_wire.dtypes import DATATYPES


class DeviceType(IntEnum):
    """Device types that the SDK tells apart."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    """Pinned host memory."""


class TypeCode(IntEnum):
    """Kinds of tensor elements."""

    INT = 0
    UINT = 1
    FLOAT = 2
    BFLOAT = 4
    BOOL = 6


class Element(NamedTuple):
    """How DLPack describes a datatype; ``carrier`` is the type of the arrays that hold it, in the array interface's notation."""

    code: int
    bits: int
    carrier: str


_CODES = {"b": TypeCode.BOOL, "i": TypeCode.INT, "u": TypeCode.UINT, "f": TypeCode.FLOAT}

ELEMENTS: Dict[str, Element] = {
    row.name: Element(_CODES[row.numpy.kind], row.itemsize * 8, row.numpy.str)
    for row in DATATYPES.values()
    if row.numpy is not None and row.itemsize
}
"""By wire name; 16-bit integers carry BF16."""
ELEMENTS["BF16"] = Element(TypeCode.BFLOAT, 16, np.dtype(np.uint16).str)

DATATYPE_NAMES = {(element.code, element.bits): name for name, element in ELEMENTS.items()}
"""Wire names by type code and bits."""


class Device(ctypes.Structure):
    """``DLDevice``."""

    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class ElementType(ctypes.Structure):
    """``DLDataType``."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class MemoryDescription(ctypes.Structure):
    """``DLTensor``: shape and strides count elements; without strides the order is C order."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", ElementType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class ManagedMemory(ctypes.Structure):
    """``DLManagedTensor``: the last holder calls ``deleter`` with this structure's address, exactly once."""

    _fields_ = (("memory", MemoryDescription), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def c_api(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a C API function of CPython with a private prototype: others may change those on ``ctypes.pythonapi``."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, pythonapi))


NAME = b"dltensor"
"""A capsule's name until it is consumed."""

USED_NAME = b"used_dltensor"

capsule_is_valid = c_api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
capsule_pointer = c_api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
capsule_set_name = c_api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)

deleter_type = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
"""A deleter that is called with the GIL held; a producer may rely on that."""


def keep_for_ever(value: object) -> None:
    """Never free ``value``: C code may hold a pointer into it until the process ends."""
    pythonapi.Py_IncRef(ctypes.py_object(value))


# Capsules store their names as pointers.
keep_for_ever(NAME)
keep_for_ever(USED_NAME)
