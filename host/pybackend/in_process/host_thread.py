"""The thread in which a server runs inside its caller's process.

It starts the models' processes, which the kernel ends with the thread that has started them, so it lasts as long as the
server. It never runs a caller's code. The process stays as it is: no signal handler, limit or setting of the
interpreter changes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  its own end of the interpreter must be registered before ours
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Literal, TypeVar

import fastapi.dependencies.models
import uvloop
from fastapi import FastAPI

from pybackend.engine.answers import AnswerCounts
from pybackend.in_process.call import PROTOCOL
from pybackend.in_process.crossing import Crossing
from pybackend.in_process.errors import UnavailableError
from pybackend.in_process.metrics import CALLERS_METRICS
from pybackend.observability.logging import LOG
from pybackend.process.launcher import StubLauncher
from pybackend.repository.layout import RepositoryScan
from pybackend.repository.remote import RemoteRepositories
from pybackend.server import Server
from pybackend.settings import Settings
from pybackend.startup import serve_prepared
from pybackend.threads import start_thread

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_FEWEST_DESCRIPTORS = 32

STOPPED = "the server is stopped: start() starts it again"


class HostThread:
    """One run of a server, from its start to its end. ``server`` and ``crossing`` exist once it is ready."""

    server: Server
    crossing: Crossing

    def __init__(self, settings: Settings, *, writes_log: bool, with_metrics: bool) -> None:
        self.pid = os.getpid()
        self._settings = settings
        self._writes_log = writes_log
        self._with_metrics = with_metrics
        self._launcher: StubLauncher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ready = False
        self._stops = False
        self.copies: set[asyncio.Task[None]] = set()  # of large tensors, that run
        self._routes: FastAPI | None = None
        self._failure: BaseException | None = None
        self._settled = threading.Event()  # it is ready, or has ended
        self._ended = threading.Event()

    def start(self) -> None:
        """Start, and wait until the models are loaded. Raises PybackendError: the server cannot start."""
        _running.add(self)
        try:
            start_thread(self._run, "pybackend-server")
        except RuntimeError as error:
            _running.discard(self)
            raise UnavailableError(f"the server cannot start: {error}") from None
        try:
            self._settled.wait()
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if not self._is_ready:
            self._ended.wait()
            raise self._failure or UnavailableError("the server was stopped while it started")

    def begin_stop(self) -> None:
        """Begin to stop, from any thread; for an owner that is gone."""
        self._stops = True
        self._send("stop")

    def stop(self) -> None:
        """Stop, and wait for the end. Ctrl-C cuts running requests short, and is raised when the server has ended."""
        self.begin_stop()
        interruption: BaseException | None = None
        while not self._ended.is_set():
            try:
                self._ended.wait()
            except KeyboardInterrupt as error:
                interruption = error
                self._send("hurry")
        if interruption is not None:
            raise interruption

    def begin_ask(self, question: Callable[[], Coroutine[Any, Any, Value]]) -> Future[Value]:
        """Begin to run a coroutine on the engine's loop."""
        answer: Future[Value] = Future()
        self.crossing.send(partial(self._begin, question, answer))
        return answer

    def _begin(self, question: Callable[[], Coroutine[Any, Any, Value]], answer: Future[Value]) -> None:
        loop = self._loop
        if loop is None or _running_loop() is not loop:  # it has ended, and another thread calls this
            answer.set_exception(UnavailableError(STOPPED))
        elif answer.set_running_or_notify_cancel():
            task = loop.create_task(question())
            task.add_done_callback(partial(_hand_over, answer))

    async def routes(self) -> FastAPI:
        """The routes of the v2 protocol, on the engine's loop."""
        if self._routes is None:
            self._routes = self.server.make_routes()
        return self._routes

    def leave_to_parent(self) -> None:
        """In a forked child: let go of what would keep the parent's server from ending."""
        if self._launcher is not None:
            self._launcher.leave_to_parent()
        if self._is_ready:
            self.server.ports.leave_to_parent()

    # In the thread

    def _run(self) -> None:
        try:
            if self._writes_log:
                LOG.open(self._settings.log, sys.stderr)
            for warning in self._settings.warnings:
                log.warning("%s", warning)
            serve_prepared(self._settings, self._serve, own_process=False)
        except BaseException as error:  # noqa: BLE001  the thread that waits raises it
            self._failure = error
            self._failure.__traceback__ = None
        finally:
            if self._is_ready:
                self.crossing.end()
            if self._writes_log:
                LOG.close()
            _running.discard(self)
            _forget_routes()
            self._ended.set()
            self._settled.set()

    def _serve(
        self, settings: Settings, scan: RepositoryScan, launcher: StubLauncher, remote: RemoteRepositories
    ) -> int:
        self._launcher = launcher

        async def main() -> int:
            self.server = Server(settings, scan, launcher, remote, CALLERS_METRICS)
            self._loop = asyncio.get_running_loop()
            if self._stops:
                self.server.stop()
            status = await self.server.run(self._on_ready, is_told=False, takes_signals=False)
            while self.copies:  # whose callers wait for an answer
                await asyncio.wait(self.copies)
            return status

        _check_descriptors()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    def _on_ready(self) -> None:
        self.server.engine.answers[PROTOCOL] = AnswerCounts("OK")
        self.crossing = Crossing(asyncio.get_running_loop(), lasting=True)
        if self._with_metrics:
            _ = self.server.metrics
        self._is_ready = True
        self._settled.set()

    def _send(self, method: Literal["stop", "hurry"]) -> None:
        """Have the loop call this method of the server; nobody does before the loop runs, or once it has ended."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(getattr(self.server, method))


def _check_descriptors() -> None:
    """Raise OSError if few more files can be opened: without any, libuv ends the process while it makes a loop."""
    with ExitStack() as opened:
        for _ in range(_FEWEST_DESCRIPTORS):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def _hand_over(answer: Future[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        answer.set_exception(UnavailableError(STOPPED))
        return
    error = task.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _forget_routes() -> None:
    """Have FastAPI forget the functions of routes: it remembers some thousands, and these keep their whole server in memory."""
    for function in vars(fastapi.dependencies.models).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


_running: set[HostThread] = set()
"""The servers that run in this process."""


def _stop_all() -> None:
    """The interpreter ends, and a server was not stopped."""
    for host in tuple(_running):
        if host.pid == os.getpid():
            host.stop()


def _leave_all() -> None:
    """This process was forked: the servers are the parent's."""
    for host in tuple(_running):
        host.leave_to_parent()
    _running.clear()


# Before the interpreter joins its threads, and refuses to start others; the ordinary ``atexit`` comes after that.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_leave_all)
