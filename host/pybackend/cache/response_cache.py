"""What every cache is to the models that use it, and what operators see of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pybackend.cache.entry import CachedResponse


@dataclass(slots=True)
class CacheFigures:
    """What a cache in this process has done so far; times are cumulative nanoseconds.

    Attributes:
        entries: responses in it.
        used_bytes: what they take.
        size_bytes: what they may take.
        hits: lookups that found something.
        misses: lookups that found nothing.
        evictions: responses that made room for others.
        lookup_ns: spent looking.
        insertion_ns: spent inserting.
    """

    entries: int = 0
    used_bytes: int = 0
    size_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class ResponseCache(ABC):
    """Responses by key; shared by all models."""

    is_here: bool = True
    """True if looking something up takes no time, False if it is asked of somebody else."""

    stable_keys: bool = False
    """True if what one server inserts is to be found by others, and after a restart."""

    @property
    def figures(self) -> CacheFigures | None:
        """For the metrics page; None if the cache is somebody else's."""
        return None

    @abstractmethod
    def get(self, key: bytes) -> CachedResponse | None:
        """What was inserted under this key, if it is still there; only for caches that are here."""

    async def look_up(self, key: bytes) -> CachedResponse | None:
        """As :meth:`get`, for every cache."""
        return self.get(key)

    @abstractmethod
    def takes(self, nbytes: int) -> bool:
        """True if an entry of this weight would be kept."""

    @abstractmethod
    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep a response, as long as there is room."""

    async def open(self) -> None:  # noqa: B027  nothing to do for what is here
        """Get ready.

        Raises:
            ServerError: it cannot be reached.
        """

    async def close(self) -> None:  # noqa: B027  likewise
        """End; nothing is looked up any more."""
