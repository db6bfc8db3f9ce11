"""A kind of response cache, as ``--cache-config`` names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybackend.model.cache.response_cache import ResponseCache

MOST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """Its settings, and the way to make it of them."""

    settings: Mapping[str, tuple[int, int] | None]  # the least and the greatest value of each; None for text
    required: Sequence[str]  # the settings that it needs
    # environment variables, by the settings that they give where the flag does not
    variables: Mapping[str, str] = field(default_factory=dict)
    # makes the cache with these settings. Raises ServerError: a library is missing
    make: Callable[[Mapping[str, str]], ResponseCache]
