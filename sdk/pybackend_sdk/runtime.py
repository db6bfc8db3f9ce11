"""The operations that model code needs a server for, and the object that provides them.

The stub binds its own runtime before it imports ``model.py``. Until then :class:`UnavailableRuntime` is bound: it logs
to stderr and refuses every other operation with a reason.
"""

import os
import sys
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Awaitable, Dict, List, Mapping, NoReturn, Optional, Protocol, Union

from pybackend_sdk.error import TritonModelException

if TYPE_CHECKING:
    from pybackend_sdk.logger import Logger
    from pybackend_sdk.metrics import MetricKind
    from pybackend_sdk.request import InferenceRequest
    from pybackend_sdk.response import InferenceResponse
    from pybackend_sdk.response_iterator import ResponseIterator
    from pybackend_sdk.response_sender import InferenceResponseSender

_LEVEL_LETTERS = "IWEI"


class Runtime(Protocol):
    """The services that model code can use. Every method may be called from any thread.

    An operation that a runtime does not provide raises :class:`TritonModelException` with the reason in one sentence.

    Attributes:
        model_directory: the result of ``get_model_dir()``, ``""`` while no model is loaded.
        instance_name: the instance that the model runs in, for messages.
        backend_settings: the operator's settings of the backend that the model belongs to.
    """

    model_directory: str
    instance_name: str
    backend_settings: "Mapping[str, str]"

    def log(self, level: "Logger.LogLevel", file: str, line: int, message: str) -> None:
        """Write a line to the server's log, attributed to ``line`` of ``file``."""

    def infer(self, request: "InferenceRequest", decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        """Run a BLS request; if the inference fails, the response carries the error."""

    def infer_async(self, request: "InferenceRequest", decoupled: bool) -> "Awaitable[Any]":
        """Run a BLS request without blocking the running event loop."""

    def response_sender(self, request: "InferenceRequest") -> "InferenceResponseSender":
        """Make the sender that answers a request passed to ``execute``."""

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        """Whether the client of a request passed to ``execute`` no longer waits for it."""

    def create_metric_family(self, name: str, description: str, kind: "MetricKind") -> object:
        """Register a family of metrics and return a handle for :meth:`create_metric`."""

    def create_metric(self, family: object, labels: Dict[str, str], buckets: Optional[List[float]]) -> object:
        """Register one series of a family and return a handle for the operations below."""

    def increment_metric(self, metric: object, value: float) -> None:
        """Add to a counter or a gauge."""

    def set_metric(self, metric: object, value: float) -> None:
        """Set a gauge."""

    def observe_metric(self, metric: object, value: float) -> None:
        """Add an observation to a histogram."""

    def metric_value(self, metric: object) -> float:
        """Read a counter or a gauge."""

    def drop_metric(self, handle: object) -> None:
        """Release a series or a family that the model has let go of. Handles must be hashable.

        The garbage collector calls this, in any thread and between any two lines: it raises nothing, and waits for no
        lock that the calling thread may hold.
        """

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, bytes]]) -> None:
        """Load or reload a model, and wait until it is ready."""

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        """Begin to unload a model."""

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a model version accepts requests; ``""`` is any version."""

    def free_memory_bytes(self) -> int:
        """Free tensor memory of this process, in bytes."""

    def output_buffer(self, nbytes: int) -> "Optional[memoryview]":
        """Writable memory from which an output is sent without a copy; None if ordinary memory is as good."""


_SPAWNED = (
    "multiprocessing started this process afresh, so it has no connection to the server. A forked process keeps the "
    "connection: use multiprocessing.get_context('fork')."
)


def _is_spawned() -> bool:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


class UnavailableRuntime:
    """The runtime of code that runs without a server, and the base of runtimes that provide only some operations.

    Attributes:
        reason: the last sentence of every refusal; subclasses say why *they* cannot serve a call.
    """

    reason: str = "This code is not run by a server."
    model_directory: str = ""
    instance_name: str = ""
    backend_settings: "Mapping[str, str]" = MappingProxyType({})

    def _refuse(self, sentence: str) -> NoReturn:
        reason = _SPAWNED if type(self) is UnavailableRuntime and _is_spawned() else self.reason
        raise TritonModelException(f"{sentence} {reason}")

    def log(self, level: "Logger.LogLevel", file: str, line: int, message: str) -> None:
        """Write the line to stderr, in the server's format."""
        now_ns = time.time_ns()
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(now_ns // 1_000_000_000))
        microseconds = now_ns // 1000 % 1_000_000
        where = f"{os.getpid()} {os.path.basename(file)}:{line}"
        sys.stderr.write(f"{_LEVEL_LETTERS[level]}{stamp}.{microseconds:06d} {where}]  {message}\n")

    def infer(self, request: "InferenceRequest", decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        self._refuse("BLS is only supported during the 'execute' function.")

    def infer_async(self, request: "InferenceRequest", decoupled: bool) -> "Awaitable[Any]":
        self._refuse("BLS is only supported during the 'execute' function.")

    def response_sender(self, request: "InferenceRequest") -> "InferenceResponseSender":
        self._refuse("Response senders are not available: return the responses from 'execute'.")

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        self._refuse("Whether the request was cancelled is not known.")

    def create_metric_family(self, name: str, description: str, kind: "MetricKind") -> object:
        self._refuse("Error when creating MetricFamily: custom metrics are not available.")

    def create_metric(self, family: object, labels: Dict[str, str], buckets: Optional[List[float]]) -> object:
        self._refuse("Error when creating Metric: custom metrics are not available.")

    def increment_metric(self, metric: object, value: float) -> None:
        self._refuse("Failed to increment metric value: custom metrics are not available.")

    def set_metric(self, metric: object, value: float) -> None:
        self._refuse("Failed to set metric value: custom metrics are not available.")

    def observe_metric(self, metric: object, value: float) -> None:
        self._refuse("Failed to observe metric value: custom metrics are not available.")

    def metric_value(self, metric: object) -> float:
        self._refuse("Failed to get metric value: custom metrics are not available.")

    def drop_metric(self, handle: object) -> None:
        """Do nothing: there are no metrics here."""

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, bytes]]) -> None:
        self._refuse("Failed to load model: model control is not available.")

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        self._refuse("Failed to unload model: model control is not available.")

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        self._refuse("Failed to check model readiness: model control is not available.")

    def free_memory_bytes(self) -> int:
        """0: there is no tensor memory here."""
        return 0

    def output_buffer(self, nbytes: int) -> "Optional[memoryview]":
        """None: nothing is sent from here."""


_bound: Runtime = UnavailableRuntime()


def bind_runtime(runtime: Runtime) -> Runtime:
    """Serve model code in this process with ``runtime`` from now on.

    Returns:
        The runtime bound before, so that callers can restore it.
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
