"""Makes the cache that the operator configured."""

from __future__ import annotations

from pybackend.model.cache.response_cache import LocalCache, ResponseCache
from pybackend.settings import CacheSettings


def make_cache(settings: CacheSettings | None) -> ResponseCache | None:
    """Make a cache; None if none is configured.

    Raises:
        ServerError: a required package is not installed.
    """
    if settings is None:
        return None
    if settings.kind == "local":
        return LocalCache(int(settings.options["size"]))
    from pybackend.model.cache.redis import RedisCache

    return RedisCache(settings.options)
