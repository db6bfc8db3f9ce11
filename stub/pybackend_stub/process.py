"""Operating system settings of a stub: to die with its host, to bear a mark, to have a name."""

import ctypes
import os
import resource
import signal
import sys
from typing import Any

from pybackend_wire.zygote import MARK

LIBC = ctypes.CDLL(None)
"""The C library, loaded once: each load makes a new class, which would cost a fork memory that was shared."""

_PRCTL: Any = getattr(LIBC, "prctl", None)  # Linux has it

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_MOST_NAME_BYTES = 15

_STAT_BYTES = 4096

_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Fields of /proc/<pid>/stat with the addresses of the arguments, counted from the end of the name."""


def die_with_host(host_pid: int) -> None:
    """Have the kernel send SIGKILL when the host dies, even while the model computes or holds the GIL."""
    if sys.platform.startswith("linux"):
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != host_pid:  # the host died before this setting took effect
        os._exit(1)


def bear_mark(mark: int) -> None:
    """Mark this process and everything it starts, so that the host can find leftovers; 0 is no mark.

    A process that is already confined cannot do so: it keeps its mark until the host gives it another.
    """
    if mark:
        try:
            resource.setrlimit(MARK, (mark, mark))
        except (OSError, ValueError):
            pass


def show_memory(shown: bool) -> None:
    """Allow or forbid other processes of the same user to inspect this one, as debuggers do."""
    if sys.platform.startswith("linux"):
        _PRCTL(_PR_SET_DUMPABLE, int(shown), 0, 0, 0)


def tidy_memory() -> None:
    """Return unused memory to the system and consolidate the rest."""
    trim = getattr(LIBC, "malloc_trim", None)  # some C libraries lack it
    if trim is not None:
        trim(0)


def be_called(name: str) -> None:
    """Show a name in ``ps`` and ``top``; a long name is cut at the front, because instances differ at the end."""
    if not sys.platform.startswith("linux"):
        return
    encoded = name.encode("utf-8", "replace")
    short = encoded[-_MOST_NAME_BYTES:].lstrip(bytes(range(0x80, 0xC0)))  # without the rest of a split character
    _PRCTL(_PR_SET_NAME, ctypes.c_char_p(short), 0, 0, 0)
    try:
        descriptor = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(descriptor, _STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    except (OSError, IndexError, ValueError):  # a kernel, or an emulation of one, that does not provide it
        return
    if 0 < begin < end:
        room = end - begin
        ctypes.memmove(begin, encoded[: room - 1].ljust(room, b"\0"), room)
