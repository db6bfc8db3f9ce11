"""The end of a connection whose client may still be sending a body that nobody reads.

A connection that is closed while unread bytes arrive is reset, and the client may lose the answer (RFC 9112 section 9.6).
"""

from __future__ import annotations

import asyncio
from typing import Any

from pybackend.frontend.substitute import Substitute

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
