"""The routes of the v2 protocol as an ASGI application for a caller's own web server.

The application runs on the engine's loop. Each message crosses to the caller's loop and back, so that neither waits for
the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from pybackend.in_process.errors import TritonError
from pybackend.in_process.life import Life

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PREFIX = "/v2"
_KEPT = ("type", "asgi", "http_version", "method", "scheme", "query_string", "headers", "client", "server")


class MountedApp:
    """The application; mounted at ``/v2`` or at the root of another path: ``app.mount("/v2", server.asgi())``."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            host = self._life.host
            app = await asyncio.wrap_future(host.begin_ask(host.routes))
            answered = host.begin_ask(lambda: app(_scope_of(scope), _across(receive), _across(send)))
        except TritonError as error:
            await _refuse(send, str(error))
            return
        await asyncio.wrap_future(answered)


def _across(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A function of the caller's loop, for the engine's."""
    caller = asyncio.get_running_loop()

    async def call(*arguments: Any) -> Any:
        async def there() -> Any:
            return await function(*arguments)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), caller))

    return call


def _scope_of(scope: Message) -> dict[str, Any]:
    """The scope of a server whose root this application is."""
    root: str = scope.get("root_path", "")
    inner = {name: scope[name] for name in _KEPT if name in scope}
    inner["root_path"] = ""
    inner["path"] = _inner_path(scope["path"], root)
    raw = scope.get("raw_path")
    if raw is not None:
        inner["raw_path"] = _inner_path(raw.decode("latin-1"), quote(root)).encode("latin-1")
    return inner


def _inner_path(path: str, root: str) -> str:
    rest = path.removeprefix(root) if root else path
    if root.endswith(_PREFIX) and not rest.startswith(f"{_PREFIX}/"):
        rest = f"{_PREFIX}{rest}"
    return _PREFIX if rest == f"{_PREFIX}/" else rest  # requests for the mount itself have the slash


async def _live(receive: Receive, send: Send) -> None:
    """The application is the whole of a web server, which begins and ends; the server's life is its owner's."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _refuse(send: Send, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def page_text(app: Callable[..., Awaitable[None]], path: str) -> str:
    """The body of a page of an ASGI application."""
    parts: list[bytes] = []

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    await app({"type": "http", "method": "GET", "path": path}, None, send)
    return b"".join(parts).decode()
