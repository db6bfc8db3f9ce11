"""One port: listening, its connections, and shutdown. It uses uvicorn's settings, but not its internals."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybackend.frontend.http.connection_clock import ConnectionClock
from pybackend.frontend.http.counted_app import counted
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.infer_protocol import InferProtocol
from pybackend.frontend.http.serial_protocol import SerialProtocol
from pybackend.frontend.listener import Listener, listen
from pybackend.frontend.tls import PortCertificates
from pybackend.observability.unexpected import repeat

_BODY = b'{"error":"the server has as many connections as it can take: close some, or try again later"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class HttpServer:
    """A port.

    Args:
        app: the ASGI application.
        shared: state shared by its connections; with an :class:`InferFrontend` they answer infer requests themselves.
    """

    def __init__(self, app: Any, shared: ConnectionClock) -> None:
        self._config = Config(
            counted(app, shared.answers),
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self._config.load()
        self._state = ServerState()
        self._clock = shared
        self._listener: Listener | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket, tls: PortCertificates | None = None) -> None:
        """Accept connections on a bound socket; with ``tls``, secure ones only."""
        loop = asyncio.get_running_loop()
        self._ticking = loop.create_task(repeat(1, self._tick))
        self._listener = await listen(sock, lambda: self._connection(loop), _FULL, tls)

    def _connection(self, loop: asyncio.AbstractEventLoop) -> SerialProtocol:
        if isinstance(self._clock, InferFrontend):
            return InferProtocol(self._config, self._state, self._clock, loop)
        return SerialProtocol(self._config, self._state, self._clock, loop)

    def _connections(self) -> list[SerialProtocol]:
        return [connection for connection in self._state.connections if isinstance(connection, SerialProtocol)]

    @property
    def connection_count(self) -> int:
        """Connections that are not being closed."""
        return sum(not connection.transport.is_closing() for connection in self._connections())

    def _tick(self) -> None:
        """The one timer of all connections."""
        self._clock.seconds += 1
        for connection in self._connections():
            connection.check_progress()

    def stop_listening(self) -> None:
        """Refuse new connections and close idle ones; the others close after their current response."""
        if self._listener is not None:
            self._listener.close()
        self._clock.closing = True
        for connection in self._connections():
            connection.shutdown()

    async def stop(self, deadline_s: float) -> bool:
        """Wait for connections until a deadline of the loop's clock, then abort them; True if none was left."""
        self.stop_listening()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                while self._state.connections:
                    self._clock.ended.clear()
                    await self._clock.ended.wait()
        cut = self._connections()
        for connection in cut:
            connection.transport.abort()
        if self._ticking is not None:
            self._ticking.cancel()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return not cut
