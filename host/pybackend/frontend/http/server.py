"""A port of HTTP: who answers its requests."""

from typing import Any

from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.asgi_exchange import AsgiApp, AsgiExchange
from pybackend.frontend.http.connection import Exchange, HttpConnection
from pybackend.frontend.http.guard import Cors, HttpGuard
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.infer_port import InferPort
from pybackend.frontend.http.request_reader import RequestHead
from pybackend.frontend.request_log import RequestLog


class HttpServer(InferPort):
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
        rules = None if guard is None else guard.guard
        super().__init__(client_memory, infer, request_log=request_log, guard=guard, cors=cors, rules=rules)
        self._app = AsgiApp(app, self.answers)

    def begin_other(self, connection: HttpConnection, head: RequestHead) -> Exchange:
        return AsgiExchange(connection, head, self._app)

    async def stop(self, deadline_s: float) -> bool:
        """As for any port; what the application still does ends."""
        none_left = await super().stop(deadline_s)
        await self._app.stop()
        return none_left
