"""Where the main thread waits for the host: on the host's core, while the host wants that.

While requests come one at a time, host and stub only ever wait for each other. On one core each hand-over is a switch
between two processes; on two it wakes a core that sleeps, which takes longer, on virtual machines many times as long.

Only the waiting thread is kept there. Before code of the model runs in it, it has its own cores back: threads and
processes that the model starts, and libraries that count the cores, find what they would find otherwise.
"""

import os
import threading
from contextlib import suppress
from typing import Optional, Set

from pybackend_stub.memory import StubMemory


class WaitingCore:
    """The core on which the thread that makes this object waits.

    Args:
        memory: tells which core the host wants.
    """

    def __init__(self, memory: StubMemory) -> None:
        self._memory = memory
        self._thread = threading.get_ident()
        self._own: Optional[Set[int]] = None

    def settle(self) -> None:
        """Move to the wanted core, if there is one and this thread may use it; called before the thread waits."""
        wanted = self._memory.wanted_core()
        if wanted is None or threading.get_ident() != self._thread:
            return
        with suppress(OSError):  # its cores have just been taken away: it waits where the kernel puts it
            own = os.sched_getaffinity(0)
            if wanted in own and len(own) > 1:
                os.sched_setaffinity(0, (wanted,))
                self._own = own

    def leave(self) -> None:
        """Give the thread its own cores back; called once it has something to do."""
        own = self._own
        if own is not None and threading.get_ident() == self._thread:
            self._own = None
            with suppress(OSError):
                os.sched_setaffinity(0, own)
