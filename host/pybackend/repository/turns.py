"""Whose turn it is to change a model: one change at a time per name, so many loads at a time in all, and no circles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pybackend.errors import InferenceError


class Turns:
    """Hands out turns.

    Args:
        most_loads: how many loads may run at the same time. One that a model asks for while it is being initialised
            needs no place of its own: the load that waits for it has one.
    """

    def __init__(self, most_loads: int) -> None:
        self._places = asyncio.Semaphore(most_loads)
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._waits: list[tuple[str, str]] = []

    @asynccontextmanager
    async def to_load(self, name: str, asked_by: str = "") -> AsyncIterator[None]:
        """Wait for the turn to load a model.

        Args:
            name: the model.
            asked_by: the model that waits for this and is being initialised meanwhile, if there is one.

        Raises:
            InferenceError: it would wait for itself.
        """
        async with AsyncExitStack() as held:
            if not asked_by:
                # Before the lock: who has one and waits for a place could keep the place's holder waiting for the lock.
                await held.enter_async_context(self._places)
            await held.enter_async_context(self.to_change(name, asked_by))
            yield

    @asynccontextmanager
    async def to_change(self, name: str, asked_by: str = "") -> AsyncIterator[None]:
        """Wait for the turn to change what is served under a name; see :meth:`to_load`."""
        if asked_by:
            self._refuse_circle(name, asked_by)
            self._waits.append((asked_by, name))
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users > 1:
                self._locks[name] = (lock, users - 1)
            else:
                del self._locks[name]
            if asked_by:
                self._waits.remove((asked_by, name))

    def _refuse_circle(self, name: str, asked_by: str) -> None:
        path = self._path(name, asked_by)
        if path:
            raise InferenceError(
                f"model '{asked_by}' would wait for itself: it is being initialised, and nothing can be done with "
                f"'{name}' before that is over ({' -> '.join([asked_by, *path])})"
            )

    def _path(self, start: str, end: str) -> list[str]:
        """The models through which ``start`` waits for ``end``, both included; empty if it does not."""
        paths = [[start]]
        seen = {start}
        while paths:
            path = paths.pop()
            if path[-1] == end:
                return path
            for waiting, awaited in self._waits:
                if waiting == path[-1] and awaited not in seen:
                    seen.add(awaited)
                    paths.append([*path, awaited])
        return []
