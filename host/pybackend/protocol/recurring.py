"""A memory of things that recur: a dict with a bound."""

from collections.abc import Hashable
from random import random
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recurring(dict[K, V]):
    """A dict with at most ``most`` entries. It is a dict, and does not have one, because the hot path looks things up in it.

    If it is full, a new entry takes the place of a random one. If more things recur than it holds, most of them are then still
    found; if the oldest one had to go, each would be gone when it is needed.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._keys: list[K] = []

    def remember(self, key: K, value: V) -> None:
        if key not in self:
            if len(self._keys) >= self._most:
                self.drop()
            self._keys.append(key)
        self[key] = value

    def drop(self) -> V:
        """Forget a random entry; returns its value."""
        at, last = int(random() * len(self._keys)), self._keys.pop()  # noqa: S311  nothing secret
        if at == len(self._keys):
            return self.pop(last)
        key, self._keys[at] = self._keys[at], last
        return self.pop(key)

    def clear(self) -> None:
        super().clear()
        self._keys.clear()
