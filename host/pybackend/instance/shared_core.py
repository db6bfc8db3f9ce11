"""One core for the server and the models' processes, while requests come one at a time.

Then they only ever wait for each other. On two cores, each hand-over wakes a core that sleeps, which on virtual machines
takes 25 to 300 us and leaves cold caches behind; on one core it is a switch between two processes. As soon as a request
comes while another one is executed, everything may use all cores again.

Models do not notice: their processes leave the core before they run a model's code, and the server does before it
starts a thread or a process (:mod:`pybackend.cores`).
"""

from __future__ import annotations

import asyncio

from pybackend import cores
from pybackend.instance.session import StubSession

ENOUGH_ALONE = 32
"""So many executions in a row of requests that came alone, and the next ones share a core."""

SHORT_NS = 100_000_000
"""Executions that usually take longer do not share: beside them a hand-over costs nothing worth saving."""

RENEW_S = 1.0
"""After so long all cores are free for a moment: another program may be busy on the shared one by now."""


class SharedCore:
    """Decides when the server and the stubs share a core; used on the event loop's thread only.

    Attributes:
        core: the core that they share now, None if they share none.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.core: int | None = None
        self._enabled = enabled
        self._running = 0
        self._waiting = 0
        self._alone = 0
        self._ended_ns = 0
        self._stubs: set[StubSession] = set()
        self._renewal: asyncio.TimerHandle | None = None

    def begin(self, stub: StubSession, usual_ns: float, queued_ns: int) -> None:
        """An execution was sent.

        Args:
            usual_ns: the usual length of its model's executions; 0 if that is not known.
            queued_ns: when its only request was queued; 0 if it has several.
        """
        self._running += 1
        # A batch, and a request that had to wait, have come beside others: those need the host while the model runs.
        is_alone = self._running - self._waiting <= 1 and queued_ns >= self._ended_ns
        if not is_alone or not 0 < usual_ns < SHORT_NS:
            self._alone = 0
            if self.core is not None:
                self.part()
        elif self.core is not None:
            if stub not in self._stubs:
                self._stubs.add(stub)
                stub.wait_on(self.core)
        elif self._enabled:
            self._alone += 1
            if self._alone >= ENOUGH_ALONE:
                self._alone = 0
                self.core = cores.pin()
                if self.core is not None:
                    self._renewal = asyncio.get_running_loop().call_later(RENEW_S, self.part)

    def end(self, now_ns: int, count: int = 1) -> None:
        """Executions have ended, or will not begin; the time is of ``time.monotonic_ns()``."""
        self._running -= count
        self._ended_ns = now_ns

    def wait(self) -> None:
        """An execution that runs begins to wait for another model."""
        self._waiting += 1

    def go_on(self) -> None:
        self._waiting -= 1

    def forget(self, stub: StubSession) -> None:
        self._stubs.discard(stub)

    def part(self) -> None:
        """Let the server and all stubs use all their cores; nothing happens if they do."""
        if self.core is None:
            return
        self.core = None
        cores.unpin()
        if self._renewal is not None:
            self._renewal.cancel()
        stubs, self._stubs = self._stubs, set()
        for stub in stubs:
            stub.wait_on(None)
