"""The cache in the server's memory, of limited size. The least recently used entries are evicted first."""

from __future__ import annotations

import time
from collections import OrderedDict

from pybackend.cache.entry import CachedResponse
from pybackend.cache.response_cache import CacheFigures, ResponseCache


class LocalCache(ResponseCache):
    """An LRU cache."""

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
