"""Pins the event loop's thread to a core at times, and starts threads and processes, which would inherit that.

The thread may be pinned because all threads of the server are started through this module, and its processes after
:func:`unpin`; a test checks that.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

_current_core = ctypes.CDLL(None).sched_getcpu

_own: dict[int, set[int]] = {}
"""The cores of the threads that are pinned, by the identity of the thread."""


def pin() -> int | None:
    """Pin the calling thread to the core on which it runs; returns the core, None if the thread has no other."""
    with suppress(OSError):  # its cores have just been taken away
        own = os.sched_getaffinity(0)
        core: int = _current_core()
        if len(own) > 1 and core in own:
            os.sched_setaffinity(0, (core,))
            _own[threading.get_ident()] = own
            return core
    return None


def unpin() -> None:
    """Let the calling thread use all its cores again; does nothing if it is not pinned."""
    if _own:
        own = _own.pop(threading.get_ident(), None)
        if own is not None:
            with suppress(OSError):
                os.sched_setaffinity(0, own)


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread. Raises RuntimeError: no more threads can be started, or the process is about to end."""
    if sys.is_finalizing():  # before Python 3.12 the caller would wait for ever for a thread that cannot begin
        raise RuntimeError("can't start new thread at interpreter shutdown")
    unpin()
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class UnpinningPool(ThreadPoolExecutor):
    """A pool of threads; the thread that hands work to it may be pinned to a core."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread of the pool."""
        unpin()  # the pool may start a thread now
        return super().submit(fn, *args, **kwargs)
