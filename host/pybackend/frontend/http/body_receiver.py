"""Receives the bytes of large tensors from the socket directly into their memory."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from pybackend.frontend.http.infer_body import StreamedBody


class Owner(Protocol):
    """The connection's own protocol."""

    def received_directly(self, body: StreamedBody, count: int) -> None:
        """Handle ``count`` bytes written by the receiver."""

    def eof_received(self) -> None:
        """The client sends no more."""

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""

    def resume_writing(self) -> None:
        """The kernel has taken all data."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""


class BodyReceiver(asyncio.BufferedProtocol):
    """Replaces the connection's protocol while such bytes arrive."""

    def __init__(self, owner: Owner, body: StreamedBody) -> None:
        self._owner = owner
        self._body = body

    def get_buffer(self, sizehint: int) -> Any:
        return self._body.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._owner.received_directly(self._body, nbytes)

    def eof_received(self) -> None:
        self._owner.eof_received()

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)
