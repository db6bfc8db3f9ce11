"""A front end's port for HTTP: which requests it answers, and the way of all others to the engine's process and back.

Those go through their connection's tunnel as they came, and the answer comes back as the client gets it. A front end
only says yes: what it would refuse, it forwards, so that every refusal is decided, counted and logged in one place.
"""

from typing import Any

import httptools

from pybackend.engine.door import Door
from pybackend.frontend.access_rules import AccessRules
from pybackend.frontend.flow import IDLE_SECONDS
from pybackend.frontend.http.connection import FULL, Exchange, HttpConnection, State
from pybackend.frontend.http.guard import INFER_PATH
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.infer_port import InferPort
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.http.routes import infer_target
from pybackend.frontend.remote.engine import RemoteEngine
from pybackend.frontend.remote.tunnels import Tunnel, Tunneller
from pybackend.frontend.request_log import RequestLog
from pybackend.observability.logging import LOG

_TUNNEL_IDLE_SECONDS = IDLE_SECONDS // 2
"""An unused tunnel is closed before the engine's process would do so, which could cross with a request."""


class ForwardingPort(InferPort):
    """The port for HTTP of a front end.

    It answers requests of inference that the rules let pass, of models that it knows.
    """

    def __init__(
        self,
        tunneller: Tunneller,
        engine: RemoteEngine,
        infer: InferFrontend[Door],
        rules: AccessRules,
        request_log: RequestLog,
    ) -> None:
        guard = rules.http_guard()
        self._rules = None if guard is None else guard.guard
        super().__init__(
            infer.client_memory, infer, request_log=request_log, cors=rules.cors, rules=self._rules, apis=rules.apis
        )
        self._tunneller = tunneller
        self._engine = engine
        self._tunnels: dict[HttpConnection, HttpTunnel] = {}
        self._take_known = self.take

    def follow(self) -> None:
        """Whether all requests are forwarded may have changed."""
        self.take = None if forwards_all(self._engine) else self._take_known

    def begin(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        target = infer_target(head.target)
        if (
            target is None
            or forwards_all(self._engine)
            or not self._engine.knows(*target, "http")
            or (self._rules is not None and self._rules.denial(INFER_PATH, head.headers) is not None)
        ):
            return self.begin_other(connection, head)
        return super().begin(connection, head)

    def begin_other(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        tunnel = self._tunnels.get(connection)
        if tunnel is None:
            tunnel = self._tunnels[connection] = HttpTunnel(self, connection)
            tunnel.tunnel = self._tunneller.open("http", connection.transport, tunnel)
        connection.record = None  # the engine's process has one
        return ForwardedExchange(connection, tunnel, head)

    def left(self, connection: HttpConnection) -> None:
        self.forget(connection)
        super().left(connection)

    def forget(self, connection: HttpConnection) -> None:
        """Let go of a connection's tunnel; its next request gets another one."""
        tunnel = self._tunnels.pop(connection, None)
        if tunnel is not None:
            tunnel.tunnel.close()

    def tick(self, seconds: int = 1) -> None:
        super().tick(seconds)
        for connection, tunnel in list(self._tunnels.items()):
            if tunnel.exchange is None and self.seconds - tunnel.used_at >= _TUNNEL_IDLE_SECONDS:
                self.forget(connection)


def forwards_all(engine: RemoteEngine) -> bool:
    """True while requests may be traced, or the log has verbose lines: then the engine's process answers all of them."""
    return engine.traces or LOG.settings.verbose_level > 0


class HttpTunnel:
    """The tunnel of one connection."""

    tunnel: Tunnel

    def __init__(self, port: ForwardingPort, connection: HttpConnection) -> None:
        self._port = port
        self._connection = connection
        self.exchange: ForwardedExchange | None = None  # the one that it carries; None between two
        self.used_at = port.seconds  # when the latest one has ended, in seconds of the port

    def on_tunnel_data(self, data: bytes) -> None:
        if self.exchange is None:
            self._port.forget(self._connection)  # it was sent without a request
        else:
            self.exchange.on_answer(data)

    def on_no_tunnel(self) -> None:
        self._port.forget(self._connection)
        if self.exchange is not None:
            self.exchange.refuse()

    def on_tunnel_lost(self) -> None:
        self._port.forget(self._connection)
        if self.exchange is not None:
            self.exchange.on_tunnel_lost()

    def on_tunnel_full(self) -> None:
        self._connection.input.pause()

    def on_tunnel_free(self) -> None:
        self._connection.input.resume()

    def ended(self, *, whole: bool) -> None:
        """The exchange has ended; the tunnel can carry another one if both sides have said everything."""
        self.exchange = None
        self.used_at = self._port.seconds
        if not whole:
            self._port.forget(self._connection)


class _AnswerEnd:
    """Finds the end of an answer.

    Attributes:
        found: the answer has ended.
        keep_alive: the connection can have another one.
    """

    def __init__(self, method: bytes) -> None:
        self._is_head = method == b"HEAD"
        self._parser: Any = httptools.HttpResponseParser(self)
        self.found = self.keep_alive = False

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.found, self.keep_alive = True, False
        if self.found:
            self.close()

    def close(self) -> None:
        """Let go of the parser: they refer to each other."""
        self._parser = None

    def on_headers_complete(self) -> None:
        """The head of the answer, or of one that precedes it (100 Continue)."""
        self.keep_alive = self._parser.should_keep_alive()
        self.found = self._is_head and self._parser.get_status_code() >= 200

    def on_message_complete(self) -> None:
        """The end of the answer, or of one that precedes it."""
        self.found = self._parser.get_status_code() >= 200


class ForwardedExchange(Exchange):
    """A request that the engine's process answers."""

    __slots__ = ("_connection", "_end", "_is_chunked", "_is_sent", "_tunnel", "has_begun")

    def __init__(self, connection: HttpConnection, tunnel: HttpTunnel, head: RequestHead) -> None:
        self._connection = connection
        self._tunnel: HttpTunnel | None = tunnel
        self._is_chunked = head.chunked
        self._end = _AnswerEnd(head.method)
        self.has_begun = self._is_sent = False
        tunnel.exchange = self
        fields = b"".join([b"%b: %b\r\n" % field for field in head.headers])
        tunnel.tunnel.write(b"%b %b HTTP/%b\r\n%b\r\n" % (head.method, head.target, head.version.encode(), fields))

    # The request

    def on_body(self, piece: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.tunnel.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)

    @property
    def is_owed(self) -> bool:
        """The engine's process has it, and looks after its own end of the tunnel."""
        return self._is_sent and not self.has_begun and self._tunnel is not None and self._tunnel.tunnel.is_open

    def on_complete(self) -> None:
        self._is_sent = True
        if self._is_chunked and self._tunnel is not None:
            self._tunnel.tunnel.write(b"0\r\n\r\n")

    # The answer

    def on_answer(self, data: bytes) -> None:
        """The next bytes of the answer, which go to the client as they are."""
        self.has_begun = True
        self._connection.transport.write(data)
        self._end.feed(data)
        if self._end.found:
            self._finish(keep_alive=self._end.keep_alive)

    def on_tunnel_lost(self) -> None:
        """The engine's process has ended the tunnel, which is also how an answer without a length ends."""
        if self.has_begun:
            self._finish(keep_alive=False)
        else:
            self._connection.drop()

    def refuse(self) -> None:
        """Answer that the server has no descriptors left."""
        self._connection.transport.write(FULL)
        self._finish(keep_alive=False)

    def _finish(self, *, keep_alive: bool) -> None:
        tunnel = self._let_go()
        assert tunnel is not None
        connection = self._connection
        tunnel.ended(whole=keep_alive and connection.state is State.ANSWERING)
        connection.writer.keep_alive = keep_alive
        connection.answered()

    def _let_go(self) -> HttpTunnel | None:
        tunnel, self._tunnel = self._tunnel, None
        self._end.close()
        return tunnel

    # The client

    def on_paused(self) -> None:
        if self._tunnel is not None:
            self._tunnel.tunnel.pause_reading()

    def on_resumed(self) -> None:
        if self._tunnel is not None:
            self._tunnel.tunnel.resume_reading()

    def on_lost(self) -> None:
        tunnel = self._let_go()
        if tunnel is not None:
            tunnel.ended(whole=False)
