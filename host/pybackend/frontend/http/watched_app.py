"""The ASGI application during a request that the watch follows."""

from __future__ import annotations

from typing import Any

from pybackend.frontend.watch import Exchange


def watched(app: Any, exchange: Exchange) -> Any:
    """The application; the exchange learns the answer's status and size."""

    async def observed(scope: Any, receive: Any, send: Any) -> None:
        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
            else:
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)

        await app(scope, receive, noting)

    return observed
