"""Accepts the connections of a port, plain or secure."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pybackend.frontend.descriptor_reserve import is_reserved
from pybackend.frontend.door import Door, complain
from pybackend.frontend.listening import BACKLOG
from pybackend.frontend.local_socket import LocalSocket
from pybackend.frontend.tls import PortCertificates

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
"""A client whose TLS handshake takes longer is disconnected."""

MOST_HANDSHAKES = 1024
"""Of one port at a time; each holds some 60 KB. Further clients wait in the system's queue."""

GRACE_S = 1.0
"""A handshake that has taken so long is broken off when there are too many, so that a flood of them locks nobody out."""

_PAUSE_S = 0.1
"""The pause after an accept that failed, for example because there was no descriptor."""


def is_secure(transport: asyncio.BaseTransport) -> bool:
    """True for a connection with TLS.

    Its transport keeps what it was given for an unknown time, and its count of waiting bytes includes those of TLS itself.
    Memory with another use afterwards must therefore be copied for it.
    """
    return transport.get_extra_info("sslcontext") is not None


class Listener(Protocol):
    """A port that accepts connections."""

    def close(self) -> None:
        """Refuse new connections."""


async def listen(
    sock: socket.socket, make_protocol: Callable[[], asyncio.Protocol], refusal: bytes, tls: PortCertificates | None
) -> Listener:
    """Accept connections on a bound socket.

    Args:
        sock: does not block.
        make_protocol: makes the protocol object for an accepted connection.
        refusal: sent to clients of a plain port that are not accepted.
        tls: makes connections secure; None for a plain port.
    """
    sock.listen(BACKLOG)  # for one that shares its port; others listen already
    listener: Listener
    if tls is not None:
        listener = SecureListener(sock, make_protocol, tls)
    else:
        loop = asyncio.get_running_loop()
        serve = loop.create_unix_server if isinstance(sock, LocalSocket) else loop.create_server
        listener = await serve(lambda: Door(make_protocol, refusal), sock=sock, backlog=BACKLOG)
    return _LocalListener(listener, sock) if isinstance(sock, LocalSocket) else listener


class _LocalListener:
    """Removes a Unix-domain socket's file when its listener closes."""

    def __init__(self, listener: Listener, sock: LocalSocket) -> None:
        self._listener = listener
        self._sock = sock

    def close(self) -> None:
        """Refuse new connections."""
        self._sock.remove_file()
        self._listener.close()


class SecureListener:
    """A port with TLS. It accepts by itself: a server of the loop begins the handshake before anybody can refuse it.

    Args:
        sock: as for :func:`listen`.
        make_protocol: likewise.
        tls: likewise.
    """

    def __init__(
        self, sock: socket.socket, make_protocol: Callable[[], asyncio.Protocol], tls: PortCertificates
    ) -> None:
        self._sock = sock
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], float] = {}  # and when they began, the oldest first
        self._ended = asyncio.Event()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Refuse new connections; handshakes that have begun are broken off."""
        self._accepting.cancel()
        for task in self._handshakes:
            task.cancel()
        self._sock.close()

    async def _accept(self) -> None:
        while True:
            if len(self._handshakes) >= MOST_HANDSHAKES:
                await self._make_room()
            try:
                connection, _ = await self._loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if is_reserved(connection.fileno()):
                connection.close()
                complain()
                continue
            task = self._loop.create_task(self._secure(connection))
            self._handshakes[task] = self._loop.time()
            task.add_done_callback(self._handshake_ended)

    async def _make_room(self) -> None:
        """Wait until a handshake ends; if none does for a while, break off the oldest."""
        oldest, began_s = next(iter(self._handshakes.items()))
        self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(began_s + GRACE_S):
                await self._ended.wait()
        if len(self._handshakes) >= MOST_HANDSHAKES:
            self._handshakes.pop(oldest, None)
            oldest.cancel()

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        self._ended.set()

    async def _secure(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls.context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:  # of which TLS errors and time-outs are kinds
            log.debug("A client is not served, because its TLS handshake failed: %s", str(error) or "it takes too long")
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
