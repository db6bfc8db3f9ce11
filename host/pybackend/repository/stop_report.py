"""What the log says while a server stops: which models it waits for, for how long, and how not to wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""How often a change is noticed."""

REPEAT_S = 5.0
"""After this long without a change, the log repeats the line."""

_MOST_NAMED = 10


@dataclass(frozen=True)
class Unfinished:
    """A version that a stopping server waits for.

    Attributes:
        version: decimal.
        request_count: its unanswered requests; 0 while it is finalized.
    """

    name: str
    version: str
    request_count: int

    def __str__(self) -> str:
        subject = f"'{self.name}' version {self.version}"
        if not self.request_count:
            return f"{subject} (being finalized)"
        return f"{subject} ({self.request_count} request{'s' if self.request_count > 1 else ''})"


class StopReport:
    """Logs the models that a stopping server waits for: at once, when that changes, and every few seconds.

    Args:
        unfinished: returns the versions that are not released yet.
        connection_count: returns the number of connections in the middle of a request or response.
        deadline_s: when the server stops waiting, by the loop's clock.
    """

    def __init__(
        self,
        unfinished: Callable[[], Sequence[Unfinished]],
        connection_count: Callable[[], int],
        deadline_s: float,
    ) -> None:
        self._unfinished = unfinished
        self._connection_count = connection_count
        self._deadline_s = deadline_s
        self._said = ""
        self._said_s = 0.0

    async def run(self) -> None:
        """Write to the log until cancelled."""
        loop = asyncio.get_running_loop()
        level = logging.INFO
        while True:
            line = self.line(loop.time())
            if line:
                log.log(level, "%s", line)
            level = logging.WARNING  # a request that is answered soon is no reason to warn
            await asyncio.sleep(PERIOD_S)

    def line(self, now_s: float) -> str:
        """The line for the log now, ``""`` if there is nothing new."""
        waits = self._waits()
        left_s = round(self._deadline_s - now_s)
        if not waits or left_s <= 0 or (waits == self._said and now_s < self._said_s + REPEAT_S):
            return ""
        self._said, self._said_s = waits, now_s
        return (
            f"Timeout {left_s}: Found {waits}. The server waits at most {left_s} s for this, its exit timeout; a second "
            "Ctrl-C or SIGTERM ends it at once."
        )

    def _waits(self) -> str:
        unfinished = self._unfinished()
        running = [each for each in unfinished if each.request_count]
        ending = [each for each in unfinished if not each.request_count]
        waits = []
        if running:
            waits.append(f"{len(running)} model versions that have in-flight inferences: {_named(running)}")
        if ending:
            waits.append(f"{len(ending)} live models: {_named(ending)}")
        if not waits and (count := self._connection_count()):
            waits.append(f"{count} HTTP service connections that still send a request or read a response")
        return "; ".join(waits)


def _named(unfinished: Sequence[Unfinished]) -> str:
    more = len(unfinished) - _MOST_NAMED
    return ", ".join(map(str, unfinished[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")
