"""What model code needs a server for, and who provides it.

The stub binds its own runtime before it imports ``model.py``. Without one, :class:`UnavailableRuntime` answers: it logs
to stderr and says of everything else that it cannot be done here.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Awaitable, Dict, List, NoReturn, Optional, Protocol, Union

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
    """What is done on behalf of a model. Every method may be called from any thread.

    Whatever a runtime cannot do raises :class:`TritonModelException` with one sentence that says so.

    Attributes:
        model_directory: folder that ``get_model_dir()`` names, ``""`` while no model is loaded.
        instance_name: the instance that the model runs in, for messages.
    """

    model_directory: str
    instance_name: str

    def log(self, level: "Logger.LogLevel", file: str, line: int, message: str) -> None:
        """Write a line to the server's log, as said at ``line`` of ``file``."""

    def infer(self, request: "InferenceRequest", decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        """Run a request of the model's own; failures of the inference come back as a response with an error."""

    def infer_async(self, request: "InferenceRequest", decoupled: bool) -> "Awaitable[Any]":
        """Run a request of the model's own without blocking the running event loop."""

    def response_sender(self, request: "InferenceRequest") -> "InferenceResponseSender":
        """Make the sender that answers a request which the server passed to ``execute``."""

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        """Whether the client of a request that the server passed to ``execute`` no longer waits for it."""

    def create_metric_family(self, name: str, description: str, kind: "MetricKind") -> object:
        """Register a family of metrics; gives a handle for :meth:`create_metric`."""

    def create_metric(self, family: object, labels: Dict[str, str], buckets: Optional[List[float]]) -> object:
        """Register one series of a family; gives a handle for the operations below."""

    def increment_metric(self, metric: object, value: float) -> None:
        """Add to a counter or a gauge."""

    def set_metric(self, metric: object, value: float) -> None:
        """Set a gauge."""

    def observe_metric(self, metric: object, value: float) -> None:
        """Add an observation to a histogram."""

    def metric_value(self, metric: object) -> float:
        """Read a counter or a gauge."""

    def drop_metric(self, handle: object) -> None:
        """The model let go of a series or a family, whose handle must be hashable.

        The garbage collector calls this, in any thread and between any two lines: it raises nothing, and waits for no
        lock that the calling thread may hold.
        """

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, bytes]]) -> None:
        """Load or reload a model, and wait until it is ready."""

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        """Begin to unload a model."""

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a model version takes requests; ``""`` is any version."""

    def free_memory_bytes(self) -> int:
        """Tensor memory of this process that is free now, in bytes."""


_SPAWNED = (
    "This process was started anew by multiprocessing and has no connection to the server; one that a model forks has: "
    "multiprocessing.get_context('fork')."
)


def _is_spawned() -> bool:
    multiprocessing = sys.modules.get("multiprocessing")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


class UnavailableRuntime:
    """The runtime of code that no server runs, and the base of those that serve some of a runtime's methods.

    Attributes:
        reason: the sentence that ends every refusal; subclasses say why *they* cannot serve a call.
    """

    reason: str = "This code is not run by a server."
    model_directory: str = ""
    instance_name: str = ""

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
        """There are no metrics here, so nobody minds."""

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, bytes]]) -> None:
        self._refuse("Failed to load model: model control is not available.")

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        self._refuse("Failed to unload model: model control is not available.")

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        self._refuse("Failed to check model readiness: model control is not available.")

    def free_memory_bytes(self) -> int:
        """There is no tensor memory here, so none of it is free."""
        return 0


_bound: Runtime = UnavailableRuntime()


def bind_runtime(runtime: Runtime) -> Runtime:
    """Let ``runtime`` serve model code in this process from now on.

    Returns:
        The runtime that was bound before, so that it can be bound again.
    """
    global _bound  # one model per process: this is where it meets its server
    previous, _bound = _bound, runtime
    return previous


def current_runtime() -> Runtime:
    """The runtime that serves model code in this process."""
    return _bound


def get_model_dir() -> str:
    """The folder of the model file: the model's version directory.

    Raises:
        TritonModelException: no model is loaded in this process.
    """
    directory = _bound.model_directory
    if not directory:
        raise TritonModelException("The model's directory is not known: no model is loaded in this process.")
    return directory
