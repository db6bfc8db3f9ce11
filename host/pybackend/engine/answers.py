"""Answers of the server, counted by their code: one for each way by which requests come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator


class Answers:
    """The counts of one protocol."""

    __slots__ = ("_ok_code", "_others", "ok")

    def __init__(self, ok_code: str) -> None:
        self._ok_code = ok_code
        self._others: Counter[str] = Counter()
        self.ok = 0  # answers with that code; the hot path adds to it

    def add(self, code: str) -> None:
        """Count an answer; codes are the protocol's, so there are few."""
        if code == self._ok_code:
            self.ok += 1
        else:
            self._others[code] += 1

    def counts(self) -> Iterator[tuple[str, int]]:
        """The number of answers by code, success first."""
        yield self._ok_code, self.ok
        yield from sorted(self._others.items())
