"""A kind of response cache, as ``--cache-config`` names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pybackend.model.cache.response_cache import ResponseCache

MOST = 2**63 - 1


class CacheKind(Protocol):
    """Its settings, and the way to make it of them."""

    @property
    def settings(self) -> Mapping[str, tuple[int, int] | None]:
        """The least and the greatest value of each setting; None for text."""
        ...

    @property
    def required(self) -> Sequence[str]:
        """The settings that it needs."""
        ...

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables, by the settings that they give where the flag does not."""
        ...

    def make(self, options: Mapping[str, str]) -> ResponseCache:
        """The cache with these settings. Raises ServerError: a library is missing."""
        ...
