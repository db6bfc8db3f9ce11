"""The yardstick: what a bare ASGI application costs under uvicorn, with no framework, no model and no second process.

``python -P echo.py REPLY_BYTES`` reads every request's whole body and answers so many bytes. It prints
``Started HTTPService at ADDRESS:PORT`` as the servers under test do.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]


class Echo:
    """An ASGI application that answers every request with the same bytes, once it has read the request."""

    def __init__(self, reply_bytes: int) -> None:
        self._body = b"x" * reply_bytes
        self._headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(reply_bytes).encode()),
        ]

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})


async def read_body(receive: Callable[[], Awaitable[Message]]) -> bytes:
    """Read a request's body, in one piece where it came in one."""
    message = await receive()
    if not message.get("more_body"):
        return bytes(message["body"])
    pieces = [message["body"]]
    while message.get("more_body"):
        message = await receive()
        pieces.append(message["body"])
    return b"".join(pieces)


def main() -> None:
    """Serve on a free port of 127.0.0.1 until SIGTERM."""
    config = uvicorn.Config(
        Echo(int(sys.argv[1])),
        host="127.0.0.1",
        port=0,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    socket = config.bind_socket()
    print(f"Started HTTPService at 127.0.0.1:{socket.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[socket])


if __name__ == "__main__":
    main()
