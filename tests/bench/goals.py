"""A target that sections of the benchmark set themselves; ``targets`` judges it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A target whose figure is a ratio of windows.

    Attributes:
        name: how the table calls it.
        ratios: by round.
        limit: what the median is compared with.
        at_least: the limit is a lower one.
    """

    name: str
    ratios: list[float]
    limit: float
    at_least: bool
