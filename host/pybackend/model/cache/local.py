"""The response cache in the server's memory, as a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pybackend.model.cache.kind import MOST, CacheKind

if TYPE_CHECKING:
    from pybackend.model.cache.response_cache import ResponseCache


def _make(options: Mapping[str, str]) -> ResponseCache:
    from pybackend.model.cache.response_cache import LocalCache  # late: flags are read before processes start

    return LocalCache(int(options["size"]))


LOCAL = CacheKind(settings={"size": (1, MOST)}, required=("size",), make=_make)
