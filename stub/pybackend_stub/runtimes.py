"""The runtimes of several models in one process: each call of a model's code finds its own.

A stub with one model binds its runtime once. In the process of a group, and in a test's process, one runtime is bound
for all models, and passes every call on to the runtime of the calling model.
"""

import threading
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Awaitable, Iterator, List, Mapping, Optional, Union, cast

from pybackend_sdk.runtime import Runtime, bind_runtime, current_runtime
from pybackend_stub.model_modules import ModelModules, caller_modules
from pybackend_stub.runtime import StubRuntime

if TYPE_CHECKING:
    from pybackend_sdk.request import InferenceRequest
    from pybackend_sdk.response import InferenceResponse, ResponseIterator
    from pybackend_sdk.response_sender import InferenceResponseSender


class SharedRuntime(StubRuntime):
    """One model's services in such a process. Its modules tell its calls from those of others."""

    def __init__(
        self, model_directory: str, instance_name: str, backend_settings: "Mapping[str, str]", modules: ModelModules
    ) -> None:
        super().__init__(model_directory, instance_name, backend_settings)
        self.modules = modules
        self.may_wait = False
        """It has called a model, or taken a response sender, and so may wait for other requests."""

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        key = request._key
        return super().is_cancelled(request) if type(key) is tuple else bool(key.is_cancelled())

    def infer(self, request: "InferenceRequest", decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        self.may_wait = True
        return super().infer(request, decoupled)

    def infer_async(self, request: "InferenceRequest", decoupled: bool) -> "Awaitable[Any]":
        self.may_wait = True
        return super().infer_async(request, decoupled)

    def response_sender(self, request: "InferenceRequest") -> "InferenceResponseSender":
        self.may_wait = True
        key = request._key
        if type(key) is tuple:
            return super().response_sender(request)
        sender: InferenceResponseSender = key.sender()  # another model in this process has made the request
        return sender


_lock = threading.Lock()
_attached: "List[SharedRuntime]" = []
_bound_before: Runtime = Runtime()
_entered: "ContextVar[Optional[SharedRuntime]]" = ContextVar("pybackend_model", default=None)


def attach(runtime: SharedRuntime) -> None:
    """Let model code call this runtime from now on."""
    global _attached, _bound_before
    with _lock:
        if not _attached:
            _bound_before = bind_runtime(_dispatcher)
        _attached = [*_attached, runtime]  # others may be looking through the present one


def detach(runtime: SharedRuntime) -> None:
    """Forget a model that has ended. After the last one, the runtime bound before the first is bound again."""
    global _attached
    with _lock:
        if runtime not in _attached:
            return
        _attached = [each for each in _attached if each is not runtime]
        if not _attached and current_runtime() is _dispatcher:  # otherwise a test has bound its own since
            bind_runtime(_bound_before)


def enter(runtime: SharedRuntime) -> "Token[Optional[SharedRuntime]]":
    """Mark the calling thread as running the model's code; this includes coroutines and contexts made inside."""
    return _entered.set(runtime)


def leave(token: "Token[Optional[SharedRuntime]]") -> None:
    """Go back to what the thread did before."""
    _entered.reset(token)


@contextmanager
def entered(runtime: SharedRuntime) -> Iterator[None]:
    """Do both, before and after a ``with`` block."""
    token = enter(runtime)
    try:
        yield
    finally:
        leave(token)


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
