"""Runs work on authors' files beside the event loop, on threads that do not delay the end of the process.

A file system can block a reader for ever. In the event loop's own pool such a read would take a thread away from
everything else, and the process could not end.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.threads import start_thread

_T = TypeVar("_T")
_P = ParamSpec("_P")

LIMIT_S = 120.0
"""Time limit for a model's files in one step of a load."""

_AT_ONCE = 16
_PATIENCE_S = 5.0
"""How long a step counts towards the limit of concurrent steps: a longer one hangs, and others must not wait for it."""


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
"""Free places for threads, per event loop."""


async def apart(what: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function that reads a model's files on a separate thread, and return its result.

    Raises ModelLoadError: UNAVAILABLE if it takes longer than :data:`LIMIT_S`. ``what`` names the files in the error.
    ``function`` continues after a time-out or cancellation: it must not change shared state.
    """
    done = await begin_apart(function, *args, **kwargs)
    try:
        await asyncio.wait({done}, timeout=LIMIT_S)
        if not done.done():
            raise ModelLoadError(
                f"reading {what} has taken longer than {LIMIT_S:g} s: does its file system answer?",
                ErrorCode.UNAVAILABLE,
            )
        return done.result()
    finally:
        done.cancel()


async def begin_apart(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
    """Begin the same without a time limit; returns a future once there is a place for the thread."""
    loop = asyncio.get_running_loop()
    places = _places.get(loop)
    if places is None:
        places = _places[loop] = asyncio.Semaphore(_AT_ONCE)
    await places.acquire()
    done: asyncio.Future[_T] = loop.create_future()
    give_back = _once(places.release)
    patience = loop.call_later(_PATIENCE_S, give_back)

    def finish(take: Callable[[Any], None], outcome: Any) -> None:
        patience.cancel()
        give_back()
        if not done.done():
            take(outcome)

    def work() -> None:
        try:
            outcome: Any = function(*args, **kwargs)
            take: Callable[[Any], None] = done.set_result
        except BaseException as error:  # noqa: BLE001  the awaiting code gets it
            outcome, take = error, done.set_exception
        with suppress(RuntimeError):  # the loop is closed, so nothing waits
            loop.call_soon_threadsafe(finish, take, outcome)

    try:
        start_thread(work, "pybackend-files")
    except BaseException:  # whatever kept the thread from starting: nothing else would give back its place
        patience.cancel()
        give_back()
        raise
    return done


def _once(function: Callable[[], None]) -> Callable[[], None]:
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            function()

    return call
