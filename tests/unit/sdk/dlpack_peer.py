"""The other side of DLPack, with ctypes: a library that offers memory, and one that takes it over.

Written from the protocol's own header, and apart from the code under test on purpose.
"""

import ctypes

import numpy as np

CPU, CUDA, CUDA_HOST, METAL, CUDA_MANAGED = 1, 2, 3, 8, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6


class DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


assert ctypes.sizeof(DLManagedTensor) == 64

_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _api))
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_USED = b"used_dltensor"
_KINDS = {"b": BOOL, "i": INT, "u": UINT, "f": FLOAT}
_NAMES = {UINT: "u", INT: "i", FLOAT: "f", BOOL: "b", BFLOAT: "u"}


def name_of(capsule):
    return _name(capsule)


def structure_of(capsule):
    """The structure in a capsule that nobody has consumed."""
    return DLManagedTensor.from_address(_pointer(capsule, b"dltensor"))


class Producer:
    """Offers an array's memory, and counts how often it gets it back."""

    def __init__(self, array, device=(CPU, 0), dtype=None, strides=None, byte_offset=0, name=b"dltensor"):
        self.array = array
        self.device = device
        self.deleted = 0
        self._deleter = _DELETER(self._on_delete)
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        code, bits, lanes = dtype or (_KINDS.get(array.dtype.kind, 255), array.dtype.itemsize * 8, 1)
        self._strides = None if strides is None else (ctypes.c_int64 * array.ndim)(*strides)
        pointer = ctypes.POINTER(ctypes.c_int64)
        self.managed = DLManagedTensor(
            array.__array_interface__["data"][0] - byte_offset,
            device[0],
            device[1],
            array.ndim,
            code,
            bits,
            lanes,
            ctypes.cast(self._shape, pointer),
            None if strides is None else ctypes.cast(self._strides, pointer),
            byte_offset,
            None,
            ctypes.cast(self._deleter, ctypes.c_void_p),
        )
        self._capsule_name = name
        self.streams = []

    def _on_delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def capsule(self):
        return _new(ctypes.addressof(self.managed), self._capsule_name, None)

    def __dlpack__(self, *streams):
        self.streams.append(streams)
        return self.capsule()

    def __dlpack_device__(self):
        return self.device


class Consumer:
    """Takes a capsule over, as a library would, and gives the memory back when it is told to."""

    def __init__(self, capsule):
        self.managed = structure_of(capsule)
        self._at = ctypes.addressof(self.managed)
        self._delete = _DELETER(self.managed.deleter)  # without the GIL, as from any thread of a C library
        assert _rename(capsule, _USED) == 0

    def array(self):
        """A copy of the elements; BF16 as 16-bit integers."""
        managed = self.managed
        shape = tuple(managed.shape[: managed.ndim])
        dtype = np.dtype(f"{_NAMES[managed.code]}{managed.bits // 8}")
        size = int(np.prod(shape)) * dtype.itemsize
        data = ctypes.string_at(managed.data + managed.byte_offset, size) if size else b""
        return np.frombuffer(data, dtype).reshape(shape) if size else np.empty(shape, dtype)

    def write(self, data):
        ctypes.memmove(self.managed.data + self.managed.byte_offset, data, len(data))

    def release(self):
        self._delete(self._at)
