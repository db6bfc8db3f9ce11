"""The guards of the ports: they refuse a call by its head, before its body is read."""

from collections.abc import Callable
from typing import NamedTuple

from pybackend.frontend.access.api_keys import KnownKeys
from pybackend.frontend.access.restrictions import CREDENTIALS, Headers, Restrictions
from pybackend.settings import ApiGroup


class Denial(NamedTuple):
    """The answer to a call that may not be made."""

    message: str
    lacks_key: bool


class Guard:
    """The guard of one port."""

    def __init__(
        self,
        keys: KnownKeys | None,
        restrictions: Restrictions,
        group_of: Callable[[str], ApiGroup | None],
        open_groups: frozenset[ApiGroup] = frozenset(),
    ) -> None:
        self._keys = keys
        self._restrictions = restrictions
        self._group_of = group_of
        self._open_groups = open_groups

    @property
    def credentials(self) -> frozenset[bytes]:
        """The headers that may carry secrets, in lower case."""
        return CREDENTIALS | self._restrictions.names

    @property
    def reads(self) -> frozenset[bytes]:
        """The headers that decide, in lower case."""
        return self._restrictions.names | (frozenset() if self._keys is None else self._keys.READS)

    def denial(self, path: str, headers: Headers) -> Denial | None:
        """The answer to a call that may not be made; None if it may. The path is decoded, without the query."""
        group = self._group_of(path)
        if self._keys is not None and group not in self._open_groups:
            message = self._keys.refusal(headers)
            if message is not None:
                return Denial(message, lacks_key=True)
        message = self._restrictions.refusal(group, headers)
        return None if message is None else Denial(message, lacks_key=False)

    def needs(self, path: str) -> tuple[bool, str]:
        """Whether calls of a path need an API key, and the name of the header that they need, ``""`` for none."""
        group = self._group_of(path)
        return self._keys is not None and group not in self._open_groups, self._restrictions.header_of(group)
