"""Notices executions that last much longer than others, with a look about once a second."""

from __future__ import annotations

LONG_NS = 10_000_000_000
"""An execution of this length deserves a line in the log, unless the model's executions often last that long."""

_UNUSUAL = 2
"""One that lasts so many times as long as the longest one before it is unusual."""


class LongExecutions:
    """Watches the oldest execution of one instance."""

    def __init__(self) -> None:
        self._number = 0
        self._age_ns = 0
        self._longest_ns = 0
        self._noticed = False

    def notices(self, number: int, age_ns: int) -> bool:
        """True if an execution has become unusually long; only once for each.

        Args:
            number: of the execution, 0 if none runs.
            age_ns: how long it has run.
        """
        if number != self._number:
            self._longest_ns = max(self._longest_ns, self._age_ns)
            self._number, self._noticed = number, False
        self._age_ns = age_ns
        if self._noticed or age_ns < max(LONG_NS, _UNUSUAL * self._longest_ns):
            return False
        self._noticed = True
        return True

    def forget(self) -> None:
        """The process has died: the length of its last execution says nothing."""
        self._number = self._age_ns = 0
        self._noticed = False
