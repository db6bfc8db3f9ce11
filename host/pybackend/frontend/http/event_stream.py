"""Server-sent events as an answer, for as long as what they come from lives."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class EventStream(StreamingResponse):
    """The answer. Its end, whether all events are sent or the client has left, closes ``life``."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], life: AsyncExitStack, status: int = 200) -> None:
        self._life = life
        super().__init__(events, status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._life:
            await super().__call__(scope, receive, send)
