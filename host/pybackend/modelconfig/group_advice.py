"""Advice about models whose calls would cost less in one process.

PROCESS_GROUP in :mod:`pybackend.modelconfig.options`.
"""

from dataclasses import dataclass

SAVED_NS = 400_000
"""CPU time of host and both processes that a call of a few numbers takes less within a process; docs/performance.md has
the figures."""

OFTEN_PER_S = 100.0
"""Fewer calls are not worth a word: they would save less than a twentieth of a core."""

CALLS_FAMILY = "pybackend_groupable_calls_total"
"""The family of metrics with the calls that are worth it; its labels are ``caller`` and ``called``."""


@dataclass(frozen=True)
class GroupAdvice:
    """Two models that could share a process. Its text is a sentence or two for people."""

    caller: str
    called: str
    calls_per_s: float

    @property
    def saved_cores(self) -> float:
        """CPU time that would be saved, in seconds per second."""
        return self.calls_per_s * SAVED_NS / 1e9

    def __str__(self) -> str:
        return (
            f"model '{self.caller}' calls '{self.called}' {self.calls_per_s:.0f} times a second, and a call takes longer than "
            f"the work of '{self.called}'. With the same PROCESS_GROUP among their parameters they share a process, and a call is a function "
            f"call there: that saves about {self.saved_cores:.2g} cores. In return, a crash of one of them ends both, "
            "and they take turns at the lock of one Python"
        )
