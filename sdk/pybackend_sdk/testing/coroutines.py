"""The event loop for a model's coroutines: one per model, in a separate thread that starts on first use."""

import asyncio
import threading
from typing import Any, Callable, Coroutine, Optional, Tuple

Outcome = Tuple[Any, Optional[BaseException]]
"""A coroutine's value, or the exception it raised."""


class CoroutineRunner:
    """Runs coroutines until closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: "Coroutine[Any, Any, Any]") -> Any:
        """Wait for a coroutine; return its value or raise its exception."""
        value, error = asyncio.run_coroutine_threadsafe(_outcome(coroutine), self._loop).result()
        if error is not None:
            raise error
        return value

    def start(self, coroutine: "Coroutine[Any, Any, Any]", on_done: "Callable[[Outcome], None]") -> None:
        """Start a coroutine; ``on_done`` is called in the loop's thread."""

        async def run() -> None:
            on_done(await _outcome(coroutine))

        asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self, wait_s: float) -> None:
        """Cancel running coroutines and end the loop; gives up after ``wait_s`` if a coroutine does not end."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(wait_s)

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()


async def _outcome(coroutine: "Coroutine[Any, Any, Any]") -> Outcome:
    try:
        return await coroutine, None
    except BaseException as error:  # noqa: BLE001  sys.exit() in a coroutine is its requests' error, not the loop's end
        return None, error
