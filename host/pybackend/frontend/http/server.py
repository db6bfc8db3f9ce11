"""Listening, the connections of one port, and their end. Knows uvicorn's settings, nothing of its inner life."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybackend.errors import ServerError
from pybackend.frontend.http.infer_protocol import InferFrontend, InferProtocol
from pybackend.frontend.http.serial_protocol import ConnectionClock, SerialProtocol

_BACKLOG = 1024


class HttpServer:
    """One port.

    Args:
        app: the ASGI application.
        frontend: if given, infer requests are answered by the connections themselves.
    """

    def __init__(self, app: Any, frontend: InferFrontend | None = None) -> None:
        self._config = Config(app, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
        self._config.load()
        self._state = ServerState()
        self._frontend = frontend
        self._clock = frontend or ConnectionClock()
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._ticking = loop.create_task(self._tick())
        self._server = await loop.create_server(lambda: self._connection(loop), sock=sock, backlog=_BACKLOG)

    def _connection(self, loop: asyncio.AbstractEventLoop) -> SerialProtocol:
        if self._frontend is None:
            return SerialProtocol(self._config, self._state, self._clock, loop)
        return InferProtocol(self._config, self._state, self._frontend, loop)

    def _connections(self) -> list[SerialProtocol]:
        return [connection for connection in self._state.connections if isinstance(connection, SerialProtocol)]

    async def _tick(self) -> None:
        """The one timer of all connections."""
        while True:
            await asyncio.sleep(1)
            self._clock.seconds += 1
            for connection in self._connections():
                connection.check_progress()

    def stop_listening(self) -> None:
        """Refuse new connections; close the idle ones; the others end with the answer under way."""
        if self._server is not None:
            self._server.close()
        self._clock.closing = True
        for connection in self._connections():
            connection.shutdown()

    async def stop(self, deadline_s: float) -> bool:
        """Wait for connections until a deadline of the loop's clock, then cut them; True if none had to be cut."""
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


def bind(address: str, port: int, service: str) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        ServerError: the address cannot be had.
    """
    host = address.removeprefix("ipv6:").strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        # Two sockets may be bound to one port while neither listens; listening now settles whose it is.
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == 98:
            raise ServerError(
                f"failed to start {service} service: Socket '{address}:{port}' already in use. Stop what listens "
                f"there, or choose another port with --{service.lower()}-port (0 takes a free one)"
            ) from None
        raise ServerError(
            f"failed to start {service} service: cannot listen on '{address}:{port}': {error.strerror}"
        ) from None
    except OverflowError:
        sock.close()
        raise ServerError(f"failed to start {service} service: {port} is no port") from None
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> str:
    """``host:port`` of a bound socket, for the terminal."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
