"""A port of HTTP: who answers its requests."""

from __future__ import annotations

import socket
from typing import Any

from pybackend.engine.answers import RefusalReason
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.asgi_exchange import AsgiApp, AsgiExchange
from pybackend.frontend.http.connection import FULL, Exchange, HttpConnection, HttpPort
from pybackend.frontend.http.fast_path import FastPath
from pybackend.frontend.http.guard import Cors, HttpGuard
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_exchange import InferExchange, read_head
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.request_log import RequestLog
from pybackend.frontend.tls import Secured


class HttpServer(HttpPort):
    """A listening port: its connections, and the objects that answer their requests.

    Without ``infer``, the ASGI application answers all requests.
    """

    def __init__(
        self,
        app: Any,
        client_memory: ClientMemory,
        infer: InferFrontend | None = None,
        *,
        request_log: RequestLog | None = None,
        guard: HttpGuard | None = None,
        cors: Cors | None = None,
    ) -> None:
        super().__init__(client_memory, request_log, guard, cors)
        self._infer = infer
        self._fast: FastPath | None = None
        if infer is not None:
            self.answers = infer.answers
            if infer.plans is not None:
                self._fast = FastPath(infer, infer.plans, None if guard is None else guard.guard)
                self.take = self._fast.take
        self._app = AsgiApp(app, self.answers)

    def begin(self, connection: HttpConnection, head: RequestHead) -> Exchange:
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

    def malformed(self, message: str, address: str) -> None:
        if self._infer is not None:
            refusals = self._infer.engine.refusals
            refusals.add(HTTP_CLIENT.protocol, RefusalReason.MALFORMED, message, sender=address)

    async def start(self, sock: socket.socket, tls: Secured | None = None) -> None:
        """Accept connections on a bound socket; with ``tls``, secure ones only."""
        await self.listen(sock, lambda: HttpConnection(self), FULL, tls)

    def forget_heads(self) -> None:
        """Read the heads of further requests again, because the rules for them have changed."""
        if self._fast is not None:
            self._fast.forget_heads()

    async def stop(self, deadline_s: float) -> bool:
        """As for any port; what the application still does ends."""
        none_left = await super().stop(deadline_s)
        await self._app.stop()
        return none_left
