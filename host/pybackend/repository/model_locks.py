"""Locks on models: one change at a time per name, a limited number of loads in total, and no deadlocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pybackend.errors import InferenceError


class ModelLocks:
    """Locks by model name, created on demand.

    Args:
        most_loads: number of loads that may run at the same time. A load requested by a model that is being initialised
            needs no place, because the load that waits for it already has one.
    """

    def __init__(self, most_loads: int) -> None:
        self._places = asyncio.Semaphore(most_loads)
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._waits: list[tuple[str, str]] = []

    @asynccontextmanager
    async def loading(self, name: str, asked_by: str = "") -> AsyncIterator[None]:
        """Wait until a model may be loaded, and block other changes of it meanwhile.

        Args:
            asked_by: the model that waits for this while it is being initialised, if any.

        Raises:
            InferenceError: the model would wait for itself.
        """
        async with AsyncExitStack() as held:
            if not asked_by:
                # Places come before locks: a lock holder waiting for a place could block the place's holder.
                await held.enter_async_context(self._places)
            await held.enter_async_context(self.changing(name, asked_by))
            yield

    @asynccontextmanager
    async def changing(self, name: str, asked_by: str = "") -> AsyncIterator[None]:
        """Wait until a model's versions may be changed; see :meth:`loading`."""
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
                f"model '{asked_by}' would wait for itself: it is being initialised, and '{name}' cannot be changed "
                f"until that has ended ({' -> '.join([asked_by, *path])})"
            )

    def _path(self, start: str, end: str) -> list[str]:
        """The models through which ``start`` waits for ``end``, both included; empty if it does not wait for it."""
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
