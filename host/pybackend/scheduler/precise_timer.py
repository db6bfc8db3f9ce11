"""A timer with microsecond resolution; the event loop's own have milliseconds, too coarse for batch delays."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class PreciseTimer:
    """One alarm at a time, based on a kernel timer descriptor.

    Args:
        callback: called on the loop when the alarm is due.

    Raises:
        OSError: the system has no file descriptors left.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._due_ns = 0
        self._spec = _TimerSpec()
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._loop.add_reader(self._descriptor, self._ring)

    def set(self, due_ns: int) -> None:
        """Ring only at this ``time.monotonic_ns()`` time, immediately if it has passed; 0 cancels the alarm."""
        if due_ns == self._due_ns:
            return
        self._due_ns = due_ns
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(due_ns, 1_000_000_000)
        _libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Close the timer; it never rings again."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _ring(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set again in the meantime
            return
        self._due_ns = 0
        self._callback()
