"""The responses to one request, for a reader that awaits them one by one; a slow reader pauses the model."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from pybackend.inference.pending import RequestHandle
from pybackend.inference.response import InferenceResponse, OnResponse

MOST_WAITING: Final = 8
"""Responses that wait for the reader before the model is paused; it continues when none waits."""


class ResponseStream:
    """Used as ``async with``: its end cancels the request, unless it is answered, and releases unread responses."""

    def __init__(self, submit: Callable[[OnResponse], RequestHandle]) -> None:
        self._submit = submit
        self._waiting: deque[InferenceResponse] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._ended = False

    async def __aenter__(self) -> Self:
        self._pending = self._submit(self._on_response)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody reads on: the request is cancelled, unless it is answered. Further calls do nothing."""
        if self._closed:
            return
        self._closed = self._ended = True
        while self._waiting:
            self._waiting.popleft().release()
        self._pending.cancel()
        del self._pending  # it has a reference to this object

    def _on_response(self, response: InferenceResponse) -> None:
        if self._closed:
            response.release()
            return
        self._waiting.append(response)
        self._arrived.set()
        if len(self._waiting) >= MOST_WAITING and not response.final:
            self._pending.pause()

    async def next(self) -> InferenceResponse | None:
        """The next response, which the caller releases; None after the last one."""
        while not self._ended:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            response = self._waiting.popleft()
            if not self._waiting:
                self._pending.resume()
            self._ended = response.final
            if not response.empty:
                return response
            response.release()
        return None
