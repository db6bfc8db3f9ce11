"""The response cache in the server's memory, as a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pybackend.model.cache.kind import MOST, CacheKind

if TYPE_CHECKING:
    from pybackend.model.cache.response_cache import ResponseCache


class LocalKind:
    """See :class:`CacheKind`."""

    settings: Mapping[str, tuple[int, int] | None] = {"size": (1, MOST)}
    required: Sequence[str] = ("size",)
    variables: Mapping[str, str] = {}

    def make(self, options: Mapping[str, str]) -> ResponseCache:
        from pybackend.model.cache.response_cache import LocalCache  # late: flags are read before processes start

        return LocalCache(int(options["size"]))


LOCAL: CacheKind = LocalKind()
