"""DLPack capsules made with ctypes, for environments whose NumPy makes no safe ones (before 1.24).

The destructor and the deleter are Python code that C calls. This has a limit that cannot be lifted: if an exception is
being handled when the last holder lets go, that exception is lost. A ``SystemError`` appears in its place, or, if the
frame that handles the exception also held the capsule on its stack, the process ends. NumPy's own capsules have no such
limit.
"""

import ctypes
from typing import Any, Callable, Dict, Sequence

from pybackend_wire.dlpack_abi import (
    NAME,
    Device,
    DeviceType,
    Element,
    ElementType,
    ManagedMemory,
    MemoryDescription,
    c_api,
    keep_for_ever,
)

_new = c_api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# The capsule that a destructor receives is already dead: passed as a py_object it would be revived and destroyed again.
_is_valid = c_api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = c_api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


class _Export:
    """An exported structure that a consumer may still read, with everything it points to."""

    __slots__ = ("managed", "owner", "shape")

    def __init__(self, owner: object, address: int, shape: "Sequence[int]", element: Element) -> None:
        self.owner = owner
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        memory = MemoryDescription(
            address,
            Device(DeviceType.CPU, 0),
            len(shape),
            ElementType(element.code, element.bits, 1),
            ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64)),
            None,
            0,
        )
        self.managed = ManagedMemory(memory, None, ctypes.cast(_DELETER, ctypes.c_void_p))


exports: Dict[int, _Export] = {}
"""Exports that consumers still hold, by the address of the structure, which is also its ``manager_ctx``."""


# These may run during interpreter shutdown, when this module's names are gone: the names they need are bound here.
def _delete(address: int, held: "Dict[int, _Export]" = exports) -> None:
    held.pop(address, None)


def _destroy(
    capsule: int,
    delete: "Callable[[int], None]" = _delete,
    is_valid: "Callable[..., Any]" = _is_valid,
    pointer: "Callable[..., Any]" = _pointer,
    name: bytes = NAME,
) -> None:
    if is_valid(capsule, name):  # otherwise a consumer has renamed it and calls the deleter
        delete(pointer(capsule, name))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_destroy)
keep_for_ever(_DELETER)
keep_for_ever(_DESTRUCTOR)


def make_capsule(owner: object, address: int, shape: "Sequence[int]", element: Element) -> Any:
    """Make a capsule of host memory that keeps ``owner`` alive until the capsule and its consumers are gone."""
    export = _Export(owner, address, shape, element)
    at = ctypes.addressof(export.managed)
    export.managed.manager_ctx = at
    exports[at] = export
    return _new(at, NAME, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))
