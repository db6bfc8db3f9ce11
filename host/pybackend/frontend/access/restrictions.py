"""Restricted groups: calls of them need a header with a secret value, which is compared in a time that tells nothing about it."""

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest

from pybackend.settings import ApiGroup, Restriction

Headers = Sequence[tuple[bytes, bytes]]
"""Names, in any case, and values of a request."""


def only_value(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header, whose name is given in lower case; None if the request lacks it, or repeats it."""
    size = len(name)
    found = [value for each, value in headers if len(each) == size and each.lower() == name]
    if len(found) != 1:
        return None
    return found[0] if type(found[0]) is Concealed else found[0].strip(b" \t")


class Restrictions:
    """The restrictions of one port.

    No group occurs twice. ``prefix`` precedes the headers' names, and ``text`` begins a refusal's message; the
    header's name follows. With ``has_digests``, the values are digests of what clients must send.
    """

    def __init__(
        self, restrictions: Sequence[Restriction], prefix: str = "", text: str = "", *, has_digests: bool = False
    ) -> None:
        self._text = text
        secret = Concealed if has_digests else bytes
        self._by_group: dict[ApiGroup | None, tuple[str, bytes, Secrets]] = {
            group: (
                f"{prefix}{each.header}",
                f"{prefix}{each.header}".lower().encode(),
                Secrets([secret(each.value.encode())]),
            )
            for each in restrictions
            for group in each.groups
        }

    @property
    def names(self) -> frozenset[bytes]:
        """The headers that carry the secrets, in lower case."""
        return frozenset(lower for _, lower, _ in self._by_group.values())

    def header_of(self, group: ApiGroup | None) -> str:
        """The name of the header that calls of a group need, ``""`` if they need none."""
        needed = self._by_group.get(group)
        return "" if needed is None else needed[0]

    def refusal(self, group: ApiGroup | None, headers: Headers) -> str | None:
        """The message for a call that lacks its header; None for one that may pass."""
        needed = self._by_group.get(group)
        if needed is None:
            return None
        name, lower, secret = needed
        value = only_value(headers, lower)
        if value is not None and value in secret:
            return None
        return f"{self._text} '{name}'"


CREDENTIALS = frozenset({b"authorization", b"proxy-authorization", b"x-api-key", b"cookie"})
"""Headers that say who calls, in lower case; those of restricted groups come to them."""

_BEARER = re.compile(rb"bearer +(\S+)", re.IGNORECASE)


class Concealed(bytes):
    """The digest of a secret, in the place of a header's value."""


def concealed(name: bytes, value: bytes) -> bytes:
    """The value of a header with credentials in a form that can be remembered: nobody can send it as a credential.

    The name is in lower case, the value without blanks around it.
    """
    secret = bearer_key(value) if name == b"authorization" else value
    return Concealed(digest_of(secret)) if secret else b""


def bearer_key(authorization: bytes) -> bytes:
    """The key in a header ``authorization``; empty if there is none."""
    if type(authorization) is Concealed:
        return authorization
    found = _BEARER.fullmatch(authorization)
    return b"" if found is None else found[1]


def digest_of(value: bytes) -> bytes:
    """The digest that takes the place of a secret."""
    return sha256(value).hexdigest().encode()


class Secrets:
    """Secrets that are remembered as digests, so that memory in use does not contain them.

    Some may be given as such.
    """

    def __init__(self, values: Iterable[bytes]) -> None:
        self.digests = tuple(value if type(value) is Concealed else digest_of(value) for value in values)

    def __contains__(self, value: object) -> bool:
        """True if the value is one of them; the time depends on their number only."""
        assert isinstance(value, bytes)
        digest, found = value if type(value) is Concealed else digest_of(value), False
        for each in self.digests:
            found |= compare_digest(digest, each)
        return found
