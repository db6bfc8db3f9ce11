"""The models of a repository in cloud storage, as the scan of all repositories sees them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Listing:
    """A repository when it was last listed.

    Attributes:
        place: its URL, for messages.
        names: of its models.
    """

    place: str
    names: Collection[str]
