"""The event loop for a model's coroutines: one per stub, in a thread of its own, made when first needed."""

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import Any, Callable, Coroutine, Optional

_execution: "contextvars.ContextVar[int]" = contextvars.ContextVar("execution", default=0)


def current_execution() -> int:
    """Number of the execution that the running coroutine belongs to, 0 outside of coroutines of ``execute``."""
    return _execution.get()


class CoroutineRunner:
    """Runs coroutines. uvloop drives them if the model's environment has it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = _new_loop()
        threading.Thread(target=self._run, name="pybackend-coroutines", daemon=True).start()

    def start(
        self,
        execution: int,
        coroutine: "Coroutine[Any, Any, Any]",
        on_done: "Callable[[Any, Optional[BaseException]], None]",
    ) -> None:
        """Begin a coroutine; ``on_done`` gets its value or its exception, in the loop's thread."""
        self._loop.call_soon_threadsafe(self._begin, execution, coroutine, on_done)

    def run(self, execution: int, coroutine: "Coroutine[Any, Any, Any]") -> Any:
        """Wait for a coroutine's value."""
        finished = threading.Lock()
        finished.acquire()
        outcome: Any = None

        def on_done(value: Any, error: "Optional[BaseException]") -> None:
            nonlocal outcome
            outcome = (value, error)
            finished.release()

        self.start(execution, coroutine, on_done)
        finished.acquire()
        value, error = outcome
        outcome = None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else the traceback's frame and the exception would keep each other, and the requests
        return value

    def _begin(
        self,
        execution: int,
        coroutine: "Coroutine[Any, Any, Any]",
        on_done: "Callable[[Any, Optional[BaseException]], None]",
    ) -> None:
        task = self._loop.create_task(_attributed(execution, coroutine, on_done))
        # The loop refers to its tasks weakly.
        task.add_done_callback(_keep.discard)
        _keep.add(task)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._loop.is_closed():
            # asyncio lets sys.exit() in a task or a callback end the loop, and others wait for it; whoever awaits such a
            # task is told. A model may stop the loop, too.
            with suppress(BaseException):
                self._loop.run_forever()


_keep: "set[asyncio.Task[None]]" = set()


async def _attributed(
    execution: int,
    coroutine: "Coroutine[Any, Any, Any]",
    on_done: "Callable[[Any, Optional[BaseException]], None]",
) -> None:
    _execution.set(execution)
    value: Any = None
    error: Optional[BaseException] = None
    try:
        value = await coroutine
    except BaseException as raised:  # noqa: BLE001  sys.exit() in a coroutine is its requests' error, not the loop's end
        error = raised
    try:
        on_done(value, error)
    finally:
        del value, error  # else the traceback's frame and the exception would keep each other, and the requests


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()  # type: ignore[no-any-return,unused-ignore]
