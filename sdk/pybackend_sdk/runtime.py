"""The operations that model code needs a server for, and the object that provides them.

The stub binds its own runtime before it imports ``model.py``. Until then a plain :class:`Runtime` is bound: it logs to
stderr and refuses every other operation with a reason.

The SDK's classes call this module, so it imports none of them: here requests, responses and senders are any objects.
"""

import os
import sys
import time
from types import MappingProxyType
from typing import Any, Awaitable, Dict, List, Mapping, NoReturn, Optional

from pybackend_sdk.error import TritonModelException

_LEVEL_LETTERS = "IWEI"

_SPAWNED = (
    "multiprocessing started this process afresh, so it has no connection to the server. A forked process keeps the "
    "connection: use multiprocessing.get_context('fork')."
)


def _is_spawned() -> bool:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


class Runtime:
    """The services that model code can use, of which this base refuses all but logging: it serves code without a server.

    Subclasses provide services. Every method may be called from any thread. An operation that a runtime does not provide
    raises :class:`TritonModelException` with the reason in one sentence.
    """

    # the last sentence of every refusal; subclasses say why *they* cannot serve a call
    reason: str = "This code is not run by a server."
    model_directory: str = ""  # the result of ``get_model_dir()``, ``""`` while no model is loaded
    instance_name: str = ""  # the instance that the model runs in, for messages
    # the operator's settings of the backend that the model belongs to
    backend_settings: "Mapping[str, str]" = MappingProxyType({})

    def _refuse(self, sentence: str) -> NoReturn:
        reason = _SPAWNED if type(self) is Runtime and _is_spawned() else self.reason
        raise TritonModelException(f"{sentence} {reason}")

    def itself(self) -> "Runtime":
        """The runtime of the calling model: this one, unless several models share the process."""
        return self

    def log(self, level: int, file: str, line: int, message: str) -> None:
        """Write a line to the server's log, attributed to ``line`` of ``file``; without a server, to stderr."""
        now_ns = time.time_ns()
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(now_ns // 1_000_000_000))
        microseconds = now_ns // 1000 % 1_000_000
        where = f"{os.getpid()} {os.path.basename(file)}:{line}"
        sys.stderr.write(f"{_LEVEL_LETTERS[level]}{stamp}.{microseconds:06d} {where}]  {message}\n")

    def infer(self, request: Any, decoupled: bool) -> Any:
        """Run a BLS request; returns a response or an iterator.

        If the inference fails, the response carries the error.
        """
        self._refuse("BLS is only supported during the 'execute' function.")

    def infer_async(self, request: Any, decoupled: bool) -> "Awaitable[Any]":
        """Run a BLS request without blocking the running event loop."""
        self._refuse("BLS is only supported during the 'execute' function.")

    def response_sender(self, request: Any) -> Any:
        """Make the sender that answers a request passed to ``execute``."""
        self._refuse("Response senders are not available: return the responses from 'execute'.")

    def is_cancelled(self, request: Any) -> bool:
        """Whether the client of a request passed to ``execute`` no longer waits for it."""
        self._refuse("Whether the request was cancelled is not known.")

    def create_metric_family(self, name: str, description: str, kind: int) -> object:
        """Register a family of metrics and return a handle for :meth:`create_metric`."""
        self._refuse("Error when creating MetricFamily: custom metrics are not available.")

    def create_metric(self, family: object, labels: Dict[str, str], buckets: Optional[List[float]]) -> object:
        """Register one series of a family and return a handle for the operations below."""
        self._refuse("Error when creating Metric: custom metrics are not available.")

    def increment_metric(self, metric: object, value: float) -> None:
        """Add to a counter or a gauge."""
        self._refuse("Failed to increment metric value: custom metrics are not available.")

    def set_metric(self, metric: object, value: float) -> None:
        """Set a gauge."""
        self._refuse("Failed to set metric value: custom metrics are not available.")

    def observe_metric(self, metric: object, value: float) -> None:
        """Add an observation to a histogram."""
        self._refuse("Failed to observe metric value: custom metrics are not available.")

    def metric_value(self, metric: object) -> float:
        """Read a counter or a gauge."""
        self._refuse("Failed to get metric value: custom metrics are not available.")

    def drop_metric(self, handle: object) -> None:
        """Release a series or a family that the model has let go of. Handles must be hashable.

        The garbage collector calls this, in any thread and between any two lines: it raises nothing, and waits for no
        lock that the calling thread may hold.
        """

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, bytes]]) -> None:
        """Load or reload a model, and wait until it is ready."""
        self._refuse("Failed to load model: model control is not available.")

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        """Begin to unload a model."""
        self._refuse("Failed to unload model: model control is not available.")

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a model version accepts requests; ``""`` is any version."""
        self._refuse("Failed to check model readiness: model control is not available.")

    def free_memory_bytes(self) -> int:
        """Free tensor memory of this process, in bytes; 0 where there is none."""
        return 0

    def output_buffer(self, nbytes: int) -> "Optional[memoryview]":
        """Writable memory from which an output is sent without a copy; None if ordinary memory is as good."""


_bound = Runtime()


def bind_runtime(runtime: Runtime) -> Runtime:
    """Serve model code in this process with ``runtime`` from now on.

    Returns the runtime bound before, so that callers can restore it.
    """
    global _bound  # a process runs one model
    previous, _bound = _bound, runtime
    return previous


def current_runtime() -> Runtime:
    """The runtime that serves model code in this process."""
    return _bound


def get_model_dir() -> str:
    """Return the folder of the model file: the model's version directory.

    Raises:
        TritonModelException: no model is loaded in this process.
    """
    directory = _bound.model_directory
    if not directory:
        raise TritonModelException("The model's directory is not known: no model is loaded in this process.")
    return directory
