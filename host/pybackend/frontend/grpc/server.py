"""The gRPC port: listening, its connections, and its end."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from pybackend.frontend.grpc.connection import GrpcConnection
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.method_table import MethodTable
from pybackend.frontend.listener import Listener, listen
from pybackend.frontend.tls import PortCertificates
from pybackend.observability.unexpected import repeat


class GrpcServer:
    """A port.

    Args:
        frontend: state shared by its connections.
    """

    def __init__(self, frontend: GrpcFrontend) -> None:
        self._frontend = frontend
        self._listener: Listener | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, sock: socket.socket, tls: PortCertificates | None = None) -> None:
        """Accept connections on a bound socket; with ``tls``, secure ones only."""
        loop = asyncio.get_running_loop()
        methods = MethodTable(self._frontend)
        self._ticking = loop.create_task(repeat(1, self.tick))
        self._listener = await listen(sock, lambda: GrpcConnection(self._frontend, methods, loop), b"", tls)

    @property
    def connection_count(self) -> int:
        """Connections that are not closed yet."""
        return len(self._frontend.connections)

    def tick(self, seconds: int = 1) -> None:
        """Time has passed: the one timer of all connections."""
        self._frontend.seconds += seconds
        for connection in list(self._frontend.connections):
            connection.check_progress(seconds)

    def stop_listening(self) -> None:
        """Refuse new connections and new calls; connections close after their last call."""
        if self._listener is not None:
            self._listener.close()
        self._frontend.closing = True
        for connection in list(self._frontend.connections):
            connection.shut_down()

    async def stop(self, deadline_s: float) -> bool:
        """Wait for connections until a deadline of the loop's clock, then abort them; True if none was left."""
        self.stop_listening()
        frontend = self._frontend
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                while frontend.connections:
                    frontend.ended.clear()
                    await frontend.ended.wait()
        cut = list(frontend.connections)
        for connection in cut:
            connection.abort()
        if self._ticking is not None:
            self._ticking.cancel()
        return not cut
