"""System calls by number through libc, for those that Python has no function for."""

import ctypes
import os
from typing import Any, Callable

MACHINE = os.uname().machine

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def syscall(number: int, *arguments: "Any") -> int:
    """Call the kernel; integers are passed in full register width, other arguments as ctypes passes them."""
    return bound(number, *arguments)()


def bound(number: int, *arguments: "Any") -> "Callable[[], int]":
    """Prepare a system call that can be repeated; each call reads the current contents of its buffers."""
    call = _libc.syscall
    passed = [ctypes.c_long(value) if isinstance(value, int) else value for value in (number, *arguments)]

    def again() -> int:
        result = int(call(*passed))
        if result < 0:
            raise _error()
        return result

    return again


def prctl(option: int, value: int = 0, second: int = 0) -> int:
    """Read or change an attribute of this process."""
    words = [ctypes.c_ulong(word) for word in (value, second, 0, 0)]
    result = int(_libc.prctl(option, *words))
    if result < 0:
        raise _error()
    return result


def parent_signal() -> int:
    """Return the signal that this process receives when its parent dies, 0 for none."""
    number = ctypes.c_int(0)
    _libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_PR_GET_PDEATHSIG = 2
