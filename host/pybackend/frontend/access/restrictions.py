"""Restricted groups: calls of them need a header with a secret value."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.frontend.access.secrets import Concealed, Secrets
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

    Args:
        restrictions: no group occurs twice.
        prefix: precedes their headers' names.
        text: the beginning of a refusal's message; the header's name follows.
    """

    def __init__(self, restrictions: Sequence[Restriction], prefix: str = "", text: str = "") -> None:
        self._text = text
        self._by_group = {
            group: (f"{prefix}{each.header}", f"{prefix}{each.header}".lower().encode(), Secrets([each.value.encode()]))
            for each in restrictions
            for group in each.groups
        }

    @property
    def names(self) -> frozenset[bytes]:
        """The headers that carry the secrets, in lower case."""
        return frozenset(lower for _, lower, _ in self._by_group.values())

    def header_of(self, group: ApiGroup | None) -> str:
        """The name of the header that calls of a group need, ``""`` if they need none."""
        needed = None if group is None else self._by_group.get(group)
        return "" if needed is None else needed[0]

    def refusal(self, group: ApiGroup | None, headers: Headers) -> str | None:
        """The message for a call that lacks its header; None for one that may pass."""
        needed = None if group is None else self._by_group.get(group)
        if needed is None:
            return None
        name, lower, secret = needed
        value = only_value(headers, lower)
        if value is not None and value in secret:
            return None
        return f"{self._text} '{name}'"
