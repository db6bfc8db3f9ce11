"""The life of a server in the caller's process: from thread to thread, in one process at a time."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pybackend.cli.command_parser import UsageError
from pybackend.errors import InferenceError, PybackendError, SettingError
from pybackend.in_process.errors import (
    InternalError,
    InvalidArgumentError,
    NotStartedError,
    TritonError,
    UnavailableError,
    error_of,
)
from pybackend.in_process.host_thread import STOPPED, HostThread
from pybackend.in_process.options import Options, in_options, settings_of

Value = TypeVar("Value")


class Life:
    """Starts and stops the thread that serves, and finds it for those who use it.

    When nobody refers to it, the server stops.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._changing = threading.Lock()
        self._pid = os.getpid()  # of the process that has started it
        self._host: HostThread | None = None
        self._not_serving = "the server is not started: call start(), or use it in a `with` block"

    def start(self) -> None:
        """Start, and wait until the models are loaded. Raises TritonError: it runs already, or cannot start."""
        if self._host is None and not self._changing.locked():
            self._pid = os.getpid()
        self._check_process()
        with self._changing:
            if self._host is not None:
                raise InvalidArgumentError("the server is started already: stop() stops it")
            options = self.options
            try:
                host = HostThread(settings_of(options), writes_log=options.writes_log, with_metrics=options.metrics)
                host.start()
            except TritonError:
                raise
            except PybackendError as error:
                wrong = isinstance(error, SettingError | UsageError)
                raise (InvalidArgumentError if wrong else InternalError)(in_options(str(error))) from None
            except OSError as error:  # of descriptors or processes, for example
                raise UnavailableError(f"the server cannot start: {error.strerror or error}") from None
            self._host = host
            self._not_serving = STOPPED
            weakref.finalize(self, host.begin_stop).atexit = False

    def stop(self) -> None:
        """Stop, and wait for the end.

        Nothing if it is not started, or if this process was forked from that of the server.
        """
        if self._pid != os.getpid():
            return
        with self._changing:
            host, self._host = self._host, None
            if host is not None:
                host.stop()

    @property
    def host(self) -> HostThread:
        """The thread that serves. Raises NotStartedError: there is none; UnavailableError: it is another process's."""
        host = self._host
        if host is None or host.pid != os.getpid():
            self._check_process()
            raise NotStartedError(self._not_serving)
        return host

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise UnavailableError(
                "this process was forked from the one whose server this is: make and start a server in this process"
            )

    def ask(self, question: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Run a coroutine on the engine's loop, and wait for its result.

        Raises TritonError instead of the engine's errors.
        """
        try:
            return self.host.begin_ask(question).result()
        except InferenceError as error:
            raise error_of(error) from None

    def get(self, question: Callable[[], Value]) -> Value:
        """The same with a function that does not wait."""

        async def asked() -> Value:
            return question()

        return self.ask(asked)
