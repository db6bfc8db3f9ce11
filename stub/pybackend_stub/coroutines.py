"""The event loop for a model's coroutines: one per stub, in a separate thread that starts on first use."""

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import Any, Callable, Coroutine, Dict, Optional, Tuple

from pybackend_stub.model_output import ABOUT
from pybackend_wire.log_record import NOTHING

_execution: "contextvars.ContextVar[int]" = contextvars.ContextVar("execution", default=0)


def current_execution() -> int:
    """Return the number of the running coroutine's execution, 0 outside of coroutines of ``execute``."""
    return _execution.get()


class CoroutineRunner:
    """Runs coroutines. uvloop drives them if the model's environment has it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = _new_loop()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pybackend-coroutines", daemon=True)
        self._thread.start()

    def start(
        self,
        execution: int,
        coroutine: "Coroutine[Any, Any, Any]",
        on_done: "Callable[[Any, Optional[BaseException]], None]",
        about: "Tuple[str, str]" = NOTHING,
    ) -> None:
        """Start a coroutine; ``on_done`` receives its value or its exception, in the loop's thread.

        Its log lines carry ``about``; see :func:`pybackend_stub.model_output.ids_of`.
        """

        def begin() -> None:
            task = self._loop.create_task(_attributed(execution, coroutine, on_done, about))
            running[task] = self, execution  # the loop refers to its tasks weakly
            task.add_done_callback(running.pop)

        self._loop.call_soon_threadsafe(begin)

    def run(self, execution: int, coroutine: "Coroutine[Any, Any, Any]", about: "Tuple[str, str]" = NOTHING) -> Any:
        """Wait for a coroutine; return its value or raise its exception."""
        finished = threading.Lock()
        finished.acquire()
        outcome: Any = None

        def on_done(value: Any, error: "Optional[BaseException]") -> None:
            nonlocal outcome
            outcome = (value, error)
            finished.release()

        self.start(execution, coroutine, on_done, about)
        finished.acquire()
        value, error = outcome
        outcome = None
        if error is not None:
            try:
                raise error
            finally:
                del error  # otherwise the traceback's frame and the exception keep each other and the requests alive
        return value

    def runs(self, execution: int) -> bool:
        """Whether a coroutine of an execution has not ended."""
        return (self, execution) in list(running.values())

    def close(self, wait_s: float) -> None:
        """Cancel the coroutines and end the loop; gives up after ``wait_s`` if one of them does not end."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(wait_s)

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        self._closed = True
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not (self._closed or self._loop.is_closed()):
            # asyncio lets sys.exit() in a task or a callback end the loop, while others wait for it; code that awaits
            # such a task sees the exception. A model may also stop the loop.
            with suppress(BaseException):
                self._loop.run_forever()
        self._loop.close()


running: "Dict[asyncio.Task[None], Tuple[CoroutineRunner, int]]" = {}
"""The tasks of all coroutines of ``execute`` that have not ended, with their executions."""


async def _attributed(
    execution: int,
    coroutine: "Coroutine[Any, Any, Any]",
    on_done: "Callable[[Any, Optional[BaseException]], None]",
    about: "Tuple[str, str]",
) -> None:
    _execution.set(execution)
    ABOUT.set(about)
    value: Any = None
    error: Optional[BaseException] = None
    try:
        value = await coroutine
    except BaseException as raised:  # noqa: BLE001  sys.exit() in a coroutine fails its requests, not the loop
        error = raised
    try:
        on_done(value, error)
    finally:
        del value, error  # otherwise the traceback's frame and the exception keep each other and the requests alive


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()  # type: ignore[no-any-return,unused-ignore]
