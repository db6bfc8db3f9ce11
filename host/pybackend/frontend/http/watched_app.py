"""The ASGI application during a request that the watch follows."""

from __future__ import annotations

from typing import Any

from pybackend.frontend.watch import Exchange

EXCHANGE = "pybackend.exchange"
"""Key of the exchange in the scope of a request that is watched."""


def watched(app: Any, exchange: Exchange) -> Any:
    """The application; the exchange learns the model, and the answer's status and size."""

    async def observed(scope: Any, receive: Any, send: Any) -> None:
        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                known = scope.get("path_params", {})
                if "model_name" in known and "model" not in exchange.about:
                    exchange.asks(known["model_name"], known.get("version", ""))
            else:
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)

        for name, value in scope["headers"]:
            if name == b"traceparent":
                exchange.continues(value)
        scope[EXCHANGE] = exchange
        await app(scope, receive, noting)

    return observed
