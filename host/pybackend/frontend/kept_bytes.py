"""Accounts for bytes buffered for clients: incomplete bodies, and unread responses.

One account covers all connections of all ports. Small amounts, which every connection may have, do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.pace import Pace
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Buffer


class Keeper(Protocol):
    """A connection, as seen by the account."""

    @property
    def pace(self) -> Pace:
        """The client's transfer rate."""

    @property
    def unread(self) -> Iterable[InferenceResponse]:
        """Responses that must stay in memory until the client has read them. Released ones among them have no outputs."""

    def make_room(self) -> None:
        """Disconnect a slow client, because others need the memory."""


class KeptBytes:
    """The account.

    Args:
        limit_bytes: limit on the total of all connections.

    Attributes:
        used_bytes: the current total.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._kept: dict[Keeper, int] = {}
        self._leaving: list[tuple[set[Keeper], Callable[[], None]]] = []

    def claim(self, keeper: Keeper, nbytes: int) -> bool:
        """Set the amount that a connection buffers from now on.

        If the total exceeds the limit, slow clients are disconnected, the slowest first.

        Returns:
            False if the total would still exceed the limit; then nothing changes.
        """
        more = nbytes - self._kept.get(keeper, 0)
        if more > 0 and self.used_bytes + more > self.limit_bytes:
            self._make_room(more, keeper)
            if self.used_bytes + more > self.limit_bytes:
                return False
        self.used_bytes += more
        if nbytes:
            self._kept[keeper] = nbytes
        else:
            self._kept.pop(keeper, None)
            if self._leaving:
                self._on_left(keeper)
        return True

    def make_room_in(self, is_part: Callable[[Buffer], bool], nbytes: int, then: Callable[[], None]) -> bool:
        """Memory of a model's process is short: disconnect slow clients whose unread responses lie there, the slowest first.

        Args:
            is_part: whether a tensor lies in this memory.
            nbytes: how many bytes are needed.
            then: called once these clients' responses are released.

        Returns:
            False if there is no such client.
        """
        held = {keeper: _held_bytes(keeper, is_part) for keeper in self._kept if keeper.pace.is_slow}
        holders = [keeper for keeper in held if held[keeper]]
        leaving: set[Keeper] = set()
        for keeper in sorted(holders, key=lambda each: each.pace.rate_bytes_per_s):
            if nbytes <= 0:
                break
            nbytes -= held[keeper]
            self.used_bytes -= self._kept.pop(keeper)
            leaving.add(keeper)
        if leaving:
            self._leaving.append((set(leaving), then))
        for keeper in leaving:
            keeper.make_room()
        return bool(leaving)

    def _on_left(self, keeper: Keeper) -> None:
        """This connection holds nothing any more."""
        for entry in tuple(self._leaving):
            keepers, then = entry
            keepers.discard(keeper)
            if not keepers:
                self._leaving.remove(entry)
                then()

    def error(self, nbytes: int) -> InferenceError:
        """The error for a client whose bytes cannot be buffered."""
        return InferenceError(
            f"the server is overloaded: it holds {self.used_bytes} bytes of incomplete bodies and unread responses, "
            f"and {nbytes} more would exceed its limit of {self.limit_bytes} (--http-memory-limit). "
            "Try again later",
            ErrorCode.UNAVAILABLE,
        )

    def _make_room(self, nbytes: int, taker: Keeper) -> None:
        slow = [keeper for keeper in self._kept if keeper is not taker and keeper.pace.is_slow]
        for keeper in sorted(slow, key=lambda each: each.pace.rate_bytes_per_s):
            if self.used_bytes + nbytes <= self.limit_bytes:
                return
            self.used_bytes -= self._kept.pop(keeper)
            keeper.make_room()


def _held_bytes(keeper: Keeper, is_part: Callable[[Buffer], bool]) -> int:
    return sum(
        memoryview(output.data).nbytes
        for response in keeper.unread
        for output in response.outputs
        if is_part(output.data)
    )
