"""Protocols that take the place of a connection for a while, as that of its transport."""

import asyncio
from collections.abc import Callable
from typing import Any

_SPARE_BYTES = 64 * 1024


class Substitute(asyncio.BaseProtocol):
    """Tells the connection, its owner, of everything but the bytes that arrive."""

    def __init__(self, owner: asyncio.Protocol, transport: Any) -> None:
        self._owner = owner
        self._transport = transport

    def eof_received(self) -> bool | None:
        return self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)


class DirectReceiver(Substitute, asyncio.BufferedProtocol):
    """The kernel writes the bytes of large tensors to their place.

    ``room`` gives the place of the next bytes, None if they belong elsewhere: then the connection goes on. ``stored``
    is called with the number of bytes that were written there.
    """

    def __init__(
        self,
        owner: asyncio.Protocol,
        transport: Any,
        room: Callable[[], memoryview | None],
        stored: Callable[[int], None],
    ) -> None:
        super().__init__(owner, transport)
        self._next_room = room
        self._stored = stored
        self._room: memoryview | None = None
        self._spare = memoryview(b"")

    def get_buffer(self, sizehint: int) -> Any:
        """The place, or other memory if the request has ended meanwhile."""
        self._room = self._next_room()
        if self._room is not None:
            return self._room
        self._spare = memoryview(bytearray(_SPARE_BYTES))
        return self._spare

    def buffer_updated(self, nbytes: int) -> None:
        if self._room is None:
            self._transport.set_protocol(self._owner)
            self._owner.data_received(bytes(self._spare[:nbytes]))
            return
        self._room = None
        self._stored(nbytes)
        if self._transport.get_protocol() is self and self._next_room() is None:
            self._transport.set_protocol(self._owner)


LONGEST_S = 30.0
"""A client that sends for longer is disconnected."""

SILENCE_S = 5.0
"""A client that is silent for this long is disconnected."""


class LingeringProtocol(Substitute, asyncio.Protocol):
    """Replaces a connection's protocol after its last answer: drops what arrives until the client has closed."""

    def __init__(self, owner: asyncio.Protocol, transport: Any) -> None:
        super().__init__(owner, transport)
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + LONGEST_S
        self._has_sent = False
        self._timer = self._loop.call_later(SILENCE_S, self._look)
        transport.set_protocol(self)
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._has_sent = True

    def _look(self) -> None:
        if not self._has_sent or self._loop.time() >= self._end_s:
            # The answer has gone long ago. Closing a secure connection would wait for the client's consent.
            self._transport.abort()
            return
        self._has_sent = False
        self._timer = self._loop.call_later(SILENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)
