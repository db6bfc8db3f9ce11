"""The goal of a search, and the decision whether one thing is better than another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pybackend_tools.analyzer.measurement import Rung

Say = Callable[[str], None]

ENOUGH = 1.05
"""What counts as more throughput: more clients are tried as long as they bring it, and the best one must."""

_NEARLY = 0.95
"""Values from this part of the best one are nearly as good."""

_ROUNDS = 4
"""If nothing differs, all of one side are above all of the other by chance in 1 of 70 comparisons."""


@dataclass(frozen=True)
class Goal:
    """The aim of the search, and its limits."""

    # throughput: the most inferences; latency: the lowest 99th percentile of times; median: their lowest median; cost:
    # the most inferences for processor time
    objective: str = "throughput"
    p99_ms: float = float("inf")  # of every model
    least_per_s: float = 0.0  # of all models together
    memory_bytes: float = float("inf")  # of the processes of all models together

    def __str__(self) -> str:
        limits = [
            *([f"p99 of at most {self.p99_ms:g} ms"] if self.p99_ms != float("inf") else []),
            *([f"at least {self.least_per_s:g} inferences/s"] if self.least_per_s else []),
            *([f"at most {self.memory_bytes / 1e6:.0f} MB"] if self.memory_bytes != float("inf") else []),
        ]
        return f"{self.objective}{' with ' if limits else ''}{', '.join(limits)}"

    def misses(self, rung: Rung) -> float:
        """By how much a measurement misses the limits, 0 if it keeps them; 1 is one limit missed by its own size."""
        return (
            max(0.0, rung.p99_ms / self.p99_ms - 1)
            + (max(0.0, 1 - rung.infer_per_s / self.least_per_s) if self.least_per_s else 0.0)
            + max(0.0, rung.memory_bytes / self.memory_bytes - 1)
        )

    def value(self, rung: Rung) -> float:
        """More is better."""
        if self.objective == "latency":
            return 1000 / rung.p99_ms
        if self.objective == "median":
            return 1000 / rung.p50_ms
        if self.objective == "cost":
            return rung.infer_per_s / max(rung.cpu_cores, 1e-3)
        return rung.infer_per_s

    def best(self, rungs: Sequence[Rung]) -> Rung | None:
        """The best measurement that keeps the limits."""
        return max((rung for rung in rungs if not self.misses(rung)), key=self.value, default=None)

    def score(self, rungs: Sequence[Rung]) -> float:
        """For the sampler: any configuration that keeps the limits is above all others."""
        best = self.best(rungs)
        return -min(map(self.misses, rungs)) if best is None else self.value(best)


@dataclass(frozen=True)
class Measured:
    """Something that was measured."""

    rungs: Sequence[Rung] = field(default=(), kw_only=True)  # empty if it could not be measured


_Measured = TypeVar("_Measured", bound=Measured)


def ranked(outcomes: Sequence[_Measured], goal: Goal) -> list[_Measured]:
    """Those that keep the limits, the best first: of those that are nearly as good, the one with the least memory."""

    def memory_bytes(outcome: _Measured) -> int:
        best = goal.best(outcome.rungs)
        return 0 if best is None else best.memory_bytes

    kept = [each for each in outcomes if goal.best(each.rungs) is not None]
    found = sorted(kept, key=lambda each: -goal.score(each.rungs))
    nearly = [each for each in found if goal.score(each.rungs) >= _NEARLY * goal.score(found[0].rungs)]
    first = min(nearly, key=memory_bytes, default=None)
    return found if first is None else [first, *(each for each in found if each is not first)]


Turns = Sequence[tuple[float, float]]
"""Values of the present and of a new one, measured in turns."""


def alternate(present: Callable[[], float], new: Callable[[], float], say: Say) -> Turns:
    """Measure two things in turns."""
    values = []
    for number in range(_ROUNDS):
        say(f"comparing the best with the present one: round {number + 1} of {_ROUNDS}")
        values.append((present(), new()))
    return values


def is_better(turns: Turns) -> bool:
    """Whether all measurements of the new one are above all of the present one, and by more than a little."""
    return min(new for _, new in turns) > max(old for old, _ in turns) and gain(turns) >= ENOUGH


def gain(turns: Turns) -> float:
    """How many times better the new one is; of the medians."""
    return statistics.median(new for _, new in turns) / statistics.median(old for old, _ in turns)
