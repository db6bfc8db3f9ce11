"""Where this process is: on a signal of the host, the stacks of its threads and coroutines go into memory that the host reads.

The stacks of threads are written by C code, so that a model which holds the interpreter's lock is seen as well. Those of
coroutines follow as soon as the main thread runs Python code again.
"""

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from typing import Any, List

from pybackend_wire.messages import STACK_END

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
