"""Runtimes of models in the test's process: a ``pb_utils`` call is served on behalf of the model that makes it.

A server runs one model per process and binds its runtime once. Here one runtime is bound for all open models and passes
every call on to the runtime of the calling model.
"""

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Iterator, List, Optional, cast

from pybackend_sdk.logger import Logger
from pybackend_sdk.runtime import Runtime, bind_runtime, current_runtime
from pybackend_sdk.testing.logs import ModelLog
from pybackend_sdk.testing.model_modules import ModelModules, caller_modules
from pybackend_stub.runtime import StubRuntime


class HarnessRuntime(StubRuntime):
    """One model's services: those of a stub, with a log for the test. Its modules tell its calls from those of others."""

    def __init__(self, instance_name: str, model_directory: str, modules: ModelModules, log: ModelLog) -> None:
        super().__init__(model_directory, instance_name, {})
        self.modules = modules
        self._log = log

    def log(self, level: int, file: str, line: int, message: str) -> None:
        self._log.add(Logger.LogLevel(level), file, line, message)


_lock = threading.Lock()
_attached: "List[HarnessRuntime]" = []
_bound_before: Runtime = Runtime()
_entered: "ContextVar[Optional[HarnessRuntime]]" = ContextVar("pybackend_sdk_testing_model", default=None)


def attach(runtime: "HarnessRuntime") -> None:
    """Let model code call this runtime from now on."""
    global _bound_before
    with _lock:
        if not _attached:
            _bound_before = bind_runtime(_dispatcher)
        _attached.append(runtime)


def detach(runtime: "HarnessRuntime") -> None:
    """Forget a model that has ended. After the last one, the runtime bound before the first is bound again."""
    with _lock:
        if runtime not in _attached:
            return
        _attached.remove(runtime)
        if not _attached and current_runtime() is _dispatcher:  # otherwise a test has bound its own since
            bind_runtime(_bound_before)


@contextmanager
def entered(runtime: "HarnessRuntime") -> Iterator[None]:
    """Mark the calling thread as running the model's code; this includes coroutines and contexts made inside."""
    token = _entered.set(runtime)
    try:
        yield
    finally:
        _entered.reset(token)


def _runtime_of_caller() -> Runtime:
    """Return the runtime of the calling model.

    The runtime entered in this context is the caller's. A thread that a model started has no such context; it runs the
    model's code, or that of a library that a model gave work to. In doubt the caller is the model opened last. Any
    other code is the test's own and runs without a server.
    """
    runtime = _entered.get()
    if runtime is not None:
        return runtime
    modules = caller_modules()
    for runtime in reversed(_attached):
        if runtime.modules is modules or (
            modules is None and threading.current_thread() is not threading.main_thread()
        ):
            return runtime
    return _bound_before


class _Dispatcher:
    """Stands in for the caller's runtime: every attribute is the caller's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_runtime_of_caller(), name)


_dispatcher = cast("Runtime", _Dispatcher())
