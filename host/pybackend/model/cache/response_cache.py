"""The interface of response caches for models, their statistics for operators, and the cache in the server's memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass

from pybackend.model.cache.entry import CachedResponse


@dataclass(slots=True)
class CacheFigures:
    """Statistics of a cache in this process; times are cumulative nanoseconds.

    Attributes:
        entries: number of stored responses.
        size_bytes: the capacity.
        hits: lookups that found a response.
        misses: lookups that found none.
        evictions: responses removed to make room.
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
    """Responses by key, shared by all models."""

    is_here: bool = True
    """True if lookups return immediately, False if they query another process."""

    stable_keys: bool = False
    """True if entries are shared with other servers and survive a restart."""

    @property
    def figures(self) -> CacheFigures | None:
        """Statistics for the metrics page; None for a cache outside this process."""
        return None

    @abstractmethod
    def get(self, key: bytes) -> CachedResponse | None:
        """The response stored under this key, None if there is none. Only for caches in this process."""

    async def look_up(self, key: bytes) -> CachedResponse | None:
        """Like :meth:`get`, for every cache."""
        return self.get(key)

    @abstractmethod
    def takes(self, nbytes: int) -> bool:
        """True if an entry of this size would be stored."""

    @abstractmethod
    def put(self, key: bytes, response: CachedResponse) -> None:
        """Store a response if there is room."""

    async def open(self) -> None:  # noqa: B027  a cache in this process needs no preparation
        """Prepare the cache.

        Raises:
            ServerError: the cache cannot be reached.
        """

    async def close(self) -> None:  # noqa: B027  likewise
        """Shut down. No lookups may follow."""


class LocalCache(ResponseCache):
    """A cache of limited size in the server's memory. The least recently used entries are evicted first."""

    def __init__(self, size_bytes: int) -> None:
        self._figures = CacheFigures(size_bytes=size_bytes)
        self._entries: OrderedDict[bytes, CachedResponse] = OrderedDict()

    @property
    def figures(self) -> CacheFigures:
        """Statistics since the start."""
        self._figures.entries = len(self._entries)
        return self._figures

    def get(self, key: bytes) -> CachedResponse | None:
        """The response stored under this key, None if there is none."""
        began_ns = time.monotonic_ns()
        figures = self._figures
        found = self._entries.get(key)
        if found is None:
            figures.misses += 1
        else:
            self._entries.move_to_end(key)
            figures.hits += 1
        figures.lookup_ns += time.monotonic_ns() - began_ns
        return found

    def takes(self, nbytes: int) -> bool:
        """True if an entry of this size fits into an empty cache."""
        return nbytes <= self._figures.size_bytes

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Store a response, evicting others if necessary."""
        began_ns = time.monotonic_ns()
        figures, entries = self._figures, self._entries
        if not self.takes(response.nbytes):
            return
        before = entries.pop(key, None)
        if before is not None:
            figures.used_bytes -= before.nbytes
        while figures.used_bytes + response.nbytes > figures.size_bytes:
            _, oldest = entries.popitem(last=False)
            figures.used_bytes -= oldest.nbytes
            figures.evictions += 1
        entries[key] = response
        figures.used_bytes += response.nbytes
        figures.insertion_ns += time.monotonic_ns() - began_ns
