"""The comparison of a value from a client with secrets, in a time that tells nothing about them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest


class Secrets:
    """Secrets that are remembered as digests, so that a dump of memory does not contain them.

    Args:
        values: the secrets.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        self._digests = tuple(sha256(value).digest() for value in values)

    def __contains__(self, value: object) -> bool:
        """True if the value is one of them; the time depends on their number only."""
        assert isinstance(value, bytes)
        digest, found = sha256(value).digest(), False
        for each in self._digests:
            found |= compare_digest(digest, each)
        return found
