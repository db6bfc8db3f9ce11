"""The memory of things that recur: a dict with bounds, and the rule that what comes once is not worth a place.

All that is remembered of requests and answers is in one of these. ``docs/architecture/hot-path.md`` lists them with
their bounds.
"""

from collections.abc import Hashable
from random import random
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SEEN_PER_ENTRY = 4
"""A hash stands for each thing that came once, so there is room for more of them."""


class Recurring(dict[K, V]):
    """A dict with at most ``most`` entries, of ``largest_bytes`` each.

    It is a dict because the hot path looks things up in it.

    Entries whose size the model's configuration bounds take none of these bytes.

    If it is full, a new entry takes the place of a random one. If more things recur than it holds, most of them are
    then still found; if the oldest one had to go, each would be gone when it is needed.
    """

    def __init__(self, most: int, largest_bytes: int = 0) -> None:
        super().__init__()
        self._most = most
        self._largest_bytes = largest_bytes
        self._keys: list[K] = []
        self._seen: set[int] = set()

    def comes_again(self, what: Hashable) -> bool:
        """True from the second time on.

        Ask before you remember what may differ each time: it then pushes nothing out.
        """
        found, seen = hash(what), self._seen
        if found in seen:
            return True
        if len(seen) >= _SEEN_PER_ENTRY * self._most:
            seen.clear()
        seen.add(found)
        return False

    def remember(self, key: K, value: V, nbytes: int = 0) -> None:
        """Remember a value, unless the entry takes too many bytes; clients and models choose them."""
        if nbytes > self._largest_bytes:
            return
        if key not in self:
            keys = self._keys
            if len(keys) >= self._most:
                at = int(random() * len(keys))  # noqa: S311  nothing secret
                keys[at], keys[-1] = keys[-1], keys[at]
                del self[keys.pop()]
            keys.append(key)
        self[key] = value

    def clear(self) -> None:
        super().clear()
        self._keys.clear()
        self._seen.clear()
