"""One port: listening, its connections, and shutdown."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from pybackend.engine.refusals import RefusalReason
from pybackend.frontend.access.secrets import CREDENTIALS
from pybackend.frontend.http.asgi_exchange import AsgiApp, AsgiExchange
from pybackend.frontend.http.connection import HttpConnection, HttpPort
from pybackend.frontend.http.exchange import Exchange
from pybackend.frontend.http.fast_path import FastPath
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_exchange import InferExchange, read_head
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.listener import Listener, listen
from pybackend.frontend.tls import PortCertificates
from pybackend.observability.unexpected import repeat

_BODY = b'{"error":"the server has as many connections as it can take: close some, or try again later"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class HttpServer:
    """A listening port: its connections, and the objects that answer their requests.

    Args:
        app: the ASGI application.
        port: state shared by its connections.
        infer: answers infer requests; None if the application answers all requests.
    """

    def __init__(self, app: Any, port: HttpPort, infer: InferFrontend | None = None) -> None:
        self._port = port
        self._infer = infer
        self._fast: FastPath | None = None
        if infer is not None and infer.plans is not None:
            guard = port.guard
            credentials = CREDENTIALS if guard is None else guard.credentials
            self._fast = FastPath(infer, infer.plans, credentials, frozenset() if guard is None else guard.reads)
        port.begin = self._begin
        if self._fast is not None:
            port.take = self._fast.take
        if infer is not None:
            port.answers = infer.answers
            port.on_malformed = self._malformed
        self._app = AsgiApp(app, port.answers)
        self._listener: Listener | None = None
        self._ticking: asyncio.Task[None] | None = None

    def _begin(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        infer = self._infer
        meaning = None if infer is None else read_head(head)
        if infer is None or meaning is None:
            return AsgiExchange(connection, head, self._app)
        exchange = InferExchange(connection, infer, meaning)
        exchange.expect(head)
        if self._fast is not None:
            self._fast.learn(head, exchange, connection.writer.cors_fields)
        if head.expects_continue:
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return exchange

    def _malformed(self, message: str, address: str) -> None:
        assert self._infer is not None
        refusals = self._infer.engine.refusals
        refusals.add(HTTP_CLIENT.protocol, RefusalReason.MALFORMED, message, sender=address)

    async def start(self, sock: socket.socket, tls: PortCertificates | None = None) -> None:
        """Accept connections on a bound socket; with ``tls``, secure ones only."""
        loop = asyncio.get_running_loop()
        self._ticking = loop.create_task(repeat(1, self.tick))
        self._listener = await listen(sock, lambda: HttpConnection(self._port), _FULL, tls)

    def forget_heads(self) -> None:
        """Read the heads of further requests again, because the rules for them have changed."""
        if self._fast is not None:
            self._fast.forget_heads()

    @property
    def connection_count(self) -> int:
        """Connections that are not being closed."""
        return sum(not connection.transport.is_closing() for connection in self._port.connections)

    def tick(self, seconds: int = 1) -> None:
        """Time has passed: the one timer of all connections."""
        self._port.seconds += seconds
        for connection in list(self._port.connections):
            connection.check_progress(seconds)

    def stop_listening(self) -> None:
        """Refuse new connections and close idle ones; the others close after their current answer."""
        if self._listener is not None:
            self._listener.close()
        self._port.closing = True
        for connection in list(self._port.connections):
            connection.shut_down()

    async def stop(self, deadline_s: float) -> bool:
        """Wait for connections until a deadline of the loop's clock, then abort them; True if none was left."""
        self.stop_listening()
        port = self._port
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                while port.connections:
                    port.ended.clear()
                    await port.ended.wait()
        cut = list(port.connections)
        for connection in cut:
            connection.transport.abort()
        if self._ticking is not None:
            self._ticking.cancel()
        await self._app.stop()
        return not cut
