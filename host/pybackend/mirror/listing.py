"""The models of a repository in cloud storage, as the scan of all repositories sees them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Listing:
    """A repository when it was last listed.

    Attributes:
        place: its URL, for messages.
        names: of its models.
        number: how often all files were listed so far.
        digests: for each model, a number that changed when one of its files did; from the last of those listings.
    """

    place: str
    names: Collection[str]
    number: int = 0
    digests: Mapping[str, int] = field(default_factory=dict)
