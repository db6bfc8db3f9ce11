"""The models of a repository in cloud storage, as the scan of all repositories sees them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import localtime, strftime


@dataclass(frozen=True)
class Listing:
    """A repository when it was last listed.

    Attributes:
        place: its URL, for messages.
        names: of its models.
        number: how often all files were listed so far.
        digests: for each model, a number that changed when one of its files did; from the last of those listings.
        listed_s: when the names were listed, in seconds since 1970.
        doubt: why the names may be others by now, as a sentence; ``""`` while the storage answers.
    """

    place: str
    names: Collection[str]
    number: int = 0
    digests: Mapping[str, int] = field(default_factory=dict)
    listed_s: float = 0.0
    doubt: str = ""


def moment(time_s: float) -> str:
    """A time for messages, on the clock of this machine."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(time_s))
