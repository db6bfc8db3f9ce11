"""A stub as a process: it dies with its host, bears a mark, has a name, and says where it is.

On a signal of the host, the stacks of its threads and coroutines go into memory that the host reads. C code writes
those of threads, so that a model which holds the interpreter's lock is seen as well. Those of coroutines follow as soon
as the main thread runs Python code again.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, List

from pybackend_wire.messages import STACK_END
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


class ThreadWatch:
    """Ends the process with status 1 if a thread ends before its code does, as by ``pthread_exit``: nobody else would notice."""

    _key: Any = None

    def begin(self) -> None:
        """Watch the calling thread."""
        if ThreadWatch._key is None:
            key = ctypes.c_uint()
            if LIBC.pthread_key_create(ctypes.byref(key), LIBC._exit):  # called with the key's value when a thread ends
                return
            ThreadWatch._key = key
        LIBC.pthread_setspecific(ThreadWatch._key, ctypes.c_void_p(1))

    def end(self) -> None:
        """The thread's code is about to end."""
        if ThreadWatch._key is not None:
            LIBC.pthread_setspecific(ThreadWatch._key, None)


def show_memory(shown: bool) -> None:
    """Allow or forbid other processes of the same user to inspect this one, as debuggers do."""
    if sys.platform.startswith("linux"):
        _PRCTL(_PR_SET_DUMPABLE, int(shown), 0, 0, 0)


def tidy_memory() -> None:
    """Return unused memory to the system and consolidate the rest."""
    trim = getattr(LIBC, "malloc_trim", None)  # some C libraries lack it
    if trim is not None:
        trim(0)


def be_called(name: str, short_name: str = "") -> None:
    """Show a name in ``ps`` and ``top``, and perhaps a shorter one where there is little room.

    That is cut at the front if it is too long, because instances differ at the end.
    """
    if not sys.platform.startswith("linux"):
        return
    encoded = name.encode("utf-8", "replace")
    short = (short_name.encode() or encoded)[-_MOST_NAME_BYTES:].lstrip(
        bytes(range(0x80, 0xC0))
    )  # without the rest of a split character
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


_descriptor = -1


def tell_stacks(descriptor: int) -> None:
    """Write stacks to this descriptor from now on, where its position is; only in the main thread.

    Nothing uses the signal, SIGURG, by itself, and a process without a handler for it ignores it.
    """
    global _descriptor  # a process has one handler of a signal, too
    _descriptor = descriptor
    signal.signal(signal.SIGURG, _tell_coroutines)
    faulthandler.register(signal.SIGURG, file=descriptor, all_threads=True, chain=True)


def _tell_coroutines(_signal: int, _frame: Any) -> None:
    """Write the stacks of coroutines of ``execute``, and that this is all."""
    with suppress(Exception):  # the model, which this interrupts, must not see an exception of ours
        coroutines = sys.modules.get("pybackend_stub.coroutines")
        tasks = [] if coroutines is None else list(coroutines.running)
        lines = [line for task in tasks for line in _stack_of(task.get_coro())]
        os.write(_descriptor, "".join(lines).encode("utf-8", "replace") + STACK_END)


def _stack_of(coroutine: Any) -> List[str]:
    """The lines of a coroutine's stack in the form of those of threads."""
    lines: List[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            lines.insert(0, f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return ["\nCoroutine (most recent call first):\n", *lines]
