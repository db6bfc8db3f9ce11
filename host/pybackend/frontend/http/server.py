"""A port of HTTP: who answers its requests."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybackend.engine.answers import AnswerCounts
from pybackend.engine.door import Door
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.api import Apis
from pybackend.frontend.http.connection import Exchange, HttpConnection
from pybackend.frontend.http.guard import Cors, HttpGuard
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.infer_port import InferPort
from pybackend.frontend.http.request_reader import RequestHead, path_of
from pybackend.frontend.http.routes import WRITTEN_HEADERS, as_get
from pybackend.frontend.request_log import RECORD, RequestLog

_KEY = "exchange"


class AsgiApp:
    """An ASGI application, as uvicorn runs it for all connections of a port."""

    def __init__(self, app: Any, answers: AnswerCounts) -> None:
        self._app = app
        self._answers = answers
        self._config = Config(
            self._observed,
            interface="asgi3",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self._config.load()
        self._state = ServerState()

    def protocol(self, exchange: AsgiExchange) -> HttpToolsProtocol:
        """The object of uvicorn for one request; the application finds the exchange in the scope's state."""
        return HttpToolsProtocol(self._config, self._state, {_KEY: exchange})

    async def _observed(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application; the exchange learns what it answers."""
        exchange: AsgiExchange = scope["state"].pop(_KEY)
        scope[WRITTEN_HEADERS] = exchange.headers
        record = exchange.record
        if record is not None:
            scope[RECORD] = record
            for name, value in scope["headers"]:
                if name == b"traceparent":
                    record.continues(value)
        writer = exchange.connection.writer
        if writer.is_1_0:
            scope["http_version"] = "1.0"
        scope = as_get(scope)

        async def noting(message: Any) -> None:
            starts = message["type"] == "http.response.start"
            if starts:
                self._answers.add(str(int(message["status"])))
                exchange.on_answer_begun(message["status"])
                known = scope.get("path_params", {})
                if record is not None and "model_name" in known and "model" not in record.about:
                    record.asks(known["model_name"], known.get("version", ""))
                if writer.is_last:
                    message = _with_connection(message, b"close")
                elif writer.is_1_0:
                    message = _kept_alive(message)
            else:
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)
            if not starts and not message.get("more_body"):
                exchange.end()

        await self._app(scope, receive, noting)

    async def stop(self) -> None:
        """End what still runs."""
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class AsgiExchange(Exchange):
    """A request and its answer."""

    __slots__ = ("_chunked", "_protocol", "_status", "connection", "has_begun", "headers", "record", "sent_bytes")

    def __init__(self, connection: HttpConnection, head: RequestHead, app: AsgiApp) -> None:
        path_of(head.target)  # uvicorn's object has no answer to a target without one
        self.connection = connection
        self.headers = head.headers
        self._chunked = head.chunked
        self.record = connection.record
        self.has_begun = False
        self._status: int | None = None
        self.sent_bytes = 0
        self._protocol: HttpToolsProtocol | None = app.protocol(self)
        self._protocol.connection_made(_Transport(self, connection))  # type: ignore[arg-type]
        self._protocol.data_received(_as_bytes(head))

    # The request

    def on_body(self, piece: bytes) -> None:
        self._feed(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def on_complete(self) -> None:
        if self._chunked:
            self._feed(b"0\r\n\r\n")

    def _feed(self, data: bytes) -> None:
        if self._protocol is not None:
            self._protocol.data_received(data)

    # The answer

    @property
    def is_over(self) -> bool:
        """The answer is written, or will never be."""
        return self._protocol is None

    def on_answer_begun(self, status: int) -> None:
        """The application has sent the head of its answer."""
        self.has_begun, self._status = True, status

    def end(self) -> None:
        """The answer is written, or as much of it as there will be."""
        if not self.is_over:
            self._end(None)
            self.connection.answered()

    def on_lost(self) -> None:
        if not self.is_over:
            self._end(ConnectionResetError())

    def _end(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None  # they refer to each other
        if self.record is not None:
            self.record.status, self.record.sent_bytes = self._status, self.sent_bytes
        assert protocol is not None
        protocol.connection_lost(error)

    def on_paused(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def on_resumed(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()


class _Transport:
    """The transport of uvicorn's object."""

    def __init__(self, exchange: AsgiExchange, connection: HttpConnection) -> None:
        self._exchange = exchange
        self._connection = connection
        self.get_extra_info = connection.transport.get_extra_info
        self.write = connection.transport.write
        self.pause_reading = connection.input.pause
        self.resume_reading = connection.input.resume

    def is_closing(self) -> bool:
        return self._exchange.is_over or self._connection.transport.is_closing()

    def close(self) -> None:
        """This answer is the connection's last one, complete or not."""
        if not self._exchange.is_over:
            self._connection.writer.keep_alive = False
            self._exchange.end()


def _as_bytes(head: RequestHead) -> bytes:
    """The head without the field that offers another protocol, which this server never takes.

    uvicorn closes connections of HTTP/1.0, so a client that wants to keep one seems to speak HTTP/1.1.
    """
    fields = [b"%b: %b\r\n" % field for field in head.headers if field[0].lower() != b"upgrade"]
    version = b"1.1" if head.keep_alive else head.version.encode()
    return b"%b %b HTTP/%b\r\n%b\r\n" % (head.method, head.target, version, b"".join(fields))


def _kept_alive(start: Any) -> Any:
    """The beginning of an answer to HTTP/1.0: it says whether the connection is kept.

    It is not if only its end can tell where the answer ends.
    """
    names = {name.lower() for name, _ in start.get("headers", ())}
    return _with_connection(start, b"keep-alive" if b"content-length" in names else b"close")


def _with_connection(start: Any, word: bytes) -> Any:
    """The beginning of an answer that says what becomes of the connection, unless the application has said it."""
    headers = start.get("headers", ())
    if any(name.lower() == b"connection" for name, _ in headers):
        return start
    return {**start, "headers": [*headers, (b"connection", word)]}


class HttpServer(InferPort):
    """A listening port: its connections, and the objects that answer their requests.

    Without ``infer``, the ASGI application answers all requests.
    """

    def __init__(
        self,
        app: Any,
        client_memory: ClientMemory,
        infer: InferFrontend[Door] | None = None,
        *,
        request_log: RequestLog | None = None,
        guard: HttpGuard | None = None,
        cors: Cors | None = None,
        apis: Apis | None = None,
    ) -> None:
        rules = None if guard is None else guard.guard
        super().__init__(client_memory, infer, request_log=request_log, guard=guard, cors=cors, rules=rules, apis=apis)
        self._app = AsgiApp(app, self.answers)

    def begin_other(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        return AsgiExchange(connection, head, self._app)

    async def stop(self, deadline_s: float) -> bool:
        """As for any port; what the application still does ends."""
        none_left = await super().stop(deadline_s)
        await self._app.stop()
        return none_left
