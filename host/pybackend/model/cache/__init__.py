"""Response caches: repeated requests are answered without running the model again."""

from pybackend.model.cache.redis import RedisCache
from pybackend.model.cache.response_cache import LocalCache, ResponseCache
from pybackend.settings import CacheSettings


def make_cache(settings: CacheSettings | None) -> ResponseCache | None:
    """Make the cache that the operator configured; None if none is configured."""
    if settings is None:
        return None
    if settings.kind == "local":
        return LocalCache(int(settings.options["size"]))
    return RedisCache(settings.options)
