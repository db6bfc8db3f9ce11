"""The comparison of a value from a client with secrets, in a time that tells nothing about them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

CREDENTIALS = frozenset({b"authorization", b"proxy-authorization", b"x-api-key", b"cookie"})
"""Headers that say who calls, in lower case; those of restricted groups come to them."""

_BEARER = re.compile(rb"bearer +(\S+)", re.IGNORECASE)


class Concealed(bytes):
    """The digest of a secret, in the place of a header's value."""


def concealed(name: bytes, value: bytes) -> bytes:
    """The value of a header with credentials in a form that can be remembered: nobody can send it as a credential.

    Args:
        name: in lower case.
        value: without blanks around it.
    """
    secret = bearer_key(value) if name == b"authorization" else value
    return Concealed(_digest(secret)) if secret else b""


def bearer_key(authorization: bytes) -> bytes:
    """The key in a header ``authorization``; empty if there is none."""
    if type(authorization) is Concealed:
        return authorization
    found = _BEARER.fullmatch(authorization)
    return b"" if found is None else found[1]


def _digest(value: bytes) -> bytes:
    return sha256(value).hexdigest().encode()


class Secrets:
    """Secrets that are remembered as digests, so that a dump of memory does not contain them."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._digests = tuple(_digest(value) for value in values)

    def __contains__(self, value: object) -> bool:
        """True if the value is one of them; the time depends on their number only."""
        assert isinstance(value, bytes)
        digest, found = value if type(value) is Concealed else _digest(value), False
        for each in self._digests:
            found |= compare_digest(digest, each)
        return found
