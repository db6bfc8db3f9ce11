"""Which model of this process is calling: what ``pb_utils`` does in a test is done on behalf of that model.

A server runs one model per process and binds its runtime once. Here one runtime is bound for all open models, and hands
every call on to the runtime of the model that makes it.
"""

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, cast

from pybackend_sdk.runtime import Runtime, UnavailableRuntime, bind_runtime, current_runtime
from pybackend_sdk.testing.model_modules import caller_modules

if TYPE_CHECKING:
    from pybackend_sdk.testing.runtime import HarnessRuntime

_lock = threading.Lock()
_attached: "List[HarnessRuntime]" = []
_bound_before: Runtime = UnavailableRuntime()
_entered: "ContextVar[Optional[HarnessRuntime]]" = ContextVar("pybackend_sdk_testing_model", default=None)


def attach(runtime: "HarnessRuntime") -> None:
    """From now on, model code may call for this runtime."""
    global _bound_before
    with _lock:
        if not _attached:
            _bound_before = bind_runtime(_dispatcher)
        _attached.append(runtime)


def detach(runtime: "HarnessRuntime") -> None:
    """The model has ended. With the last one, what was bound before the first is bound again."""
    with _lock:
        if runtime not in _attached:
            return
        _attached.remove(runtime)
        if not _attached and current_runtime() is _dispatcher:  # else a test has bound its own since
            bind_runtime(_bound_before)


@contextmanager
def entered(runtime: "HarnessRuntime") -> Iterator[None]:
    """The calling thread runs the model's code; coroutines and contexts made inside do so too."""
    token = _entered.set(runtime)
    try:
        yield
    finally:
        _entered.reset(token)


def _runtime_of_caller() -> Runtime:
    """The runtime of the model that calls.

    Whoever has been entered in this context calls. A thread that a model has started has no such context, but the model's
    code, or that of a library which a model has handed work to; in doubt it is the model that was opened last. What is left
    is the test's own code, which no server runs.
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
    """A runtime in name only: every attribute is that of the caller's. Metrics know themselves where they belong."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_runtime_of_caller(), name)

    def create_metric(self, family: Any, labels: "Dict[str, str]", buckets: "Optional[List[float]]") -> object:
        return family.registry.create(family, labels, buckets)

    def increment_metric(self, metric: Any, value: float) -> None:
        metric.registry.increment(metric, value)

    def set_metric(self, metric: Any, value: float) -> None:
        metric.registry.set(metric, value)

    def observe_metric(self, metric: Any, value: float) -> None:
        metric.registry.observe(metric, value)

    def metric_value(self, metric: Any) -> float:
        value: float = metric.registry.read(metric)
        return value

    def drop_metric(self, handle: Any) -> None:
        """The garbage collector calls, so this only leaves a note."""
        handle.registry.dropped.append(handle.item)


_dispatcher = cast("Runtime", _Dispatcher())
