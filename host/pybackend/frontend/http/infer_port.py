"""A port of HTTP whose connections answer infer requests themselves."""

import socket

from pybackend.engine.answers import RefusalReason
from pybackend.engine.door import Door
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.api import Apis
from pybackend.frontend.http.connection import FULL, Exchange, HttpConnection, HttpPort
from pybackend.frontend.http.fast_path import HttpFastPath
from pybackend.frontend.http.guard import Cors, HttpGuard
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_exchange import InferExchange, read_head
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.request_log import RequestLog
from pybackend.frontend.tls import Secured


class InferPort(HttpPort):
    """The port; without ``infer``, its connections answer nothing themselves.

    ``rules`` decide which heads may be remembered.
    """

    def __init__(
        self,
        client_memory: ClientMemory,
        infer: InferFrontend[Door] | None,
        *,
        request_log: RequestLog | None = None,
        guard: HttpGuard | None = None,
        cors: Cors | None = None,
        rules: Guard | None = None,
        apis: Apis | None = None,
    ) -> None:
        super().__init__(client_memory, request_log, guard, cors, apis or Apis())
        self._infer = infer
        self._fast: HttpFastPath | None = None
        if infer is not None:
            self.answers = infer.answers
            if infer.plans is not None:
                self._fast = HttpFastPath(infer, infer.plans, rules)
                self.take = self._fast.take

    def begin(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        infer = self._infer
        meaning = None if infer is None else read_head(head)
        if infer is None or meaning is None:
            return self.begin_other(connection, head)
        exchange = InferExchange(connection, infer, meaning)
        exchange.expect(head)
        if self._fast is not None:
            self._fast.learn(head, exchange, connection.writer.cors_fields)
        if head.expects_continue and not exchange.is_refused:
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return exchange

    def begin_other(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        raise NotImplementedError

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
