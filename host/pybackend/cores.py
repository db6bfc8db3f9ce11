"""The core on which the event loop's thread stays at times, and the start of threads and processes, which inherit it.

The thread may stay there because all threads of the server are started through this module, and its processes after
:func:`roam`; a test checks that.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

_current_core = ctypes.CDLL(None).sched_getcpu

_own: dict[int, set[int]] = {}
"""The cores to give back, by the identity of the thread that stays on one of them."""


def stay() -> int | None:
    """Keep the calling thread on the core on which it runs; returns the core, None if the thread has no other."""
    with suppress(OSError):  # its cores have just been taken away
        own = os.sched_getaffinity(0)
        core: int = _current_core()
        if len(own) > 1 and core in own:
            os.sched_setaffinity(0, (core,))
            _own[threading.get_ident()] = own
            return core
    return None


def roam() -> None:
    """Give the calling thread its cores back; nothing happens if it does not stay on one."""
    if _own:
        own = _own.pop(threading.get_ident(), None)
        if own is not None:
            with suppress(OSError):
                os.sched_setaffinity(0, own)


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        RuntimeError: no more threads can be started.
    """
    roam()
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class RoamingPool(ThreadPoolExecutor):
    """A pool of threads; the thread that hands work to it may stay on one core."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread of the pool."""
        roam()  # the pool may start a thread now
        return super().submit(fn, *args, **kwargs)
