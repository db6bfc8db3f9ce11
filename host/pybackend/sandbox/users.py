"""Users for models' processes: numbers out of a range that nobody else on this machine has."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

PER_SERVER = 4096
"""Users of one server at a time. Another server on this machine has others."""

_MOST_SERVERS = 64

_BLOCKS = 16
"""In how many blocks a server's users can be handed out."""

_RANGES = (1_879_100_000, 61_184)
"""Where the range may begin, the best place first: what systemd leaves to nobody, and what it gives to services for a while,
for servers in a container that maps few numbers."""


class NoUsersError(Exception):
    """There are no numbers to be had; the text says why."""


class UserRange:
    """Hands out numbers for users and groups.

    The range is held by the name of a socket: it is free again when this process is gone, however it ends.
    """

    def __init__(self) -> None:
        self._claim: socket.socket | None = None
        self._first = 0
        self._count = 0
        self._taken: set[int] = set()
        self._next = 0
        self._changing = threading.Lock()  # models are loaded side by side, in threads

    def take(self) -> int:
        """A number that no process has.

        Raises:
            NoUsersError: there is none.
        """
        with self._changing:
            if self._claim is None:
                self._open()
            for _ in range(self._count):
                number = self._first + self._next
                self._next = (self._next + 1) % self._count
                if number not in self._taken:
                    self._taken.add(number)
                    return number
        raise NoUsersError(f"all {self._count} users for models are taken")

    def take_block(self) -> range:
        """Numbers in a row that no process has.

        Raises:
            NoUsersError: there are none.
        """
        with self._changing:
            if self._claim is None:
                self._open()
            size = self._count // _BLOCKS
            for start in reversed(range(self._first, self._first + self._count, size)):
                block = range(start, start + size)
                if self._taken.isdisjoint(block):
                    self._taken.update(block)
                    return block
        raise NoUsersError("there are no users in a row left for models")

    def give_back(self, *numbers: int) -> None:
        """No process has these numbers any more."""
        with self._changing:
            self._taken.difference_update(numbers)

    def close(self) -> None:
        """Give up the range."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _open(self) -> None:
        first, count, servers = _usable_range()
        for server in range(servers):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0pybackend-users-{first + server * count}")
            except OSError:
                claim.close()
                continue
            self._claim, self._first, self._count = claim, first + server * count, count
            return
        raise NoUsersError(f"{servers} servers on this machine have taken all users for models")


def _usable_range() -> tuple[int, int, int]:
    """First number, how many there are for a server, and for how many servers."""
    for first in _RANGES:
        if first == _RANGES[-1] and _is_mapped(first, 4096):
            return first, 256, 16
        if _is_mapped(first, PER_SERVER * _MOST_SERVERS):
            return first, PER_SERVER, _MOST_SERVERS
    raise NoUsersError("this container maps no users that models could have")


def _is_mapped(first: int, count: int) -> bool:
    """True if these users and groups exist in the user namespace of this process."""
    for name in ("uid_map", "gid_map"):
        ranges = [tuple(map(int, line.split())) for line in Path(f"/proc/self/{name}").read_text().splitlines()]
        if not any(inside <= first and first + count <= inside + size for inside, _, size in ranges):
            return False
    return os.geteuid() == 0
