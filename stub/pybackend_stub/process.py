"""What a stub asks of the operating system for itself: to end with its host, to bear a mark, to have a name."""

import ctypes
import os
import resource
import signal
import sys

from pybackend_wire.zygote import MARK

LIBC = ctypes.CDLL(None)
"""The C library; looked up once: each look makes a class anew, which a fork would pay for in memory that was shared."""

_PRCTL = LIBC.prctl

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_MOST_NAME_BYTES = 15

_STAT_BYTES = 4096

_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Where /proc/<pid>/stat says at which addresses the arguments lie, counted from behind the name."""


def die_with_host(host_pid: int) -> None:
    """Ask the kernel for SIGKILL when the host dies, even while the model computes or holds the GIL."""
    if sys.platform.startswith("linux"):
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != host_pid:  # it died before the request to the kernel was in force
        os._exit(1)


def bear_mark(mark: int) -> None:
    """Mark this process, and all that it starts, for the host that looks for what is left of it; 0 is no mark."""
    if mark:
        resource.setrlimit(MARK, (mark, mark))


def show_memory(shown: bool) -> None:
    """Let other processes of the same user look into this one, or not, as debuggers do."""
    if sys.platform.startswith("linux"):
        _PRCTL(_PR_SET_DUMPABLE, int(shown), 0, 0, 0)


def tidy_memory() -> None:
    """Give memory that is not in use back to the system, and bring what is left of it into order."""
    trim = getattr(LIBC, "malloc_trim", None)  # not every C library has it
    if trim is not None:
        trim(0)


def be_called(name: str) -> None:
    """Show a name in ``ps`` and ``top``: its end if it is long, where instances differ."""
    if not sys.platform.startswith("linux"):
        return
    encoded = name.encode("utf-8", "replace")
    short = encoded[-_MOST_NAME_BYTES:].lstrip(bytes(range(0x80, 0xC0)))  # of no character that is cut in two
    _PRCTL(_PR_SET_NAME, ctypes.c_char_p(short), 0, 0, 0)
    try:
        descriptor = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(descriptor, _STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    except (OSError, IndexError, ValueError):  # a kernel, or something that plays one, that does not say
        return
    if 0 < begin < end:
        room = end - begin
        ctypes.memmove(begin, encoded[: room - 1].ljust(room, b"\0"), room)
