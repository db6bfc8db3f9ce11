"""The runtime behind ``pb_utils`` for a model in a harness."""

import sys
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Optional, Union

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.metrics import MetricKind
from pybackend_sdk.response_sender import InferenceResponseSender
from pybackend_sdk.runtime import Runtime
from pybackend_sdk.testing.logs import ModelLog
from pybackend_sdk.testing.model_modules import ModelModules

if TYPE_CHECKING:
    from pybackend_sdk.request import InferenceRequest
    from pybackend_sdk.response import InferenceResponse
    from pybackend_sdk.response_iterator import ResponseIterator
    from pybackend_sdk.response_stream import ResponseStream
    from pybackend_sdk.testing.exchange import Exchange
    from pybackend_sdk.testing.metrics import MetricRegistry
    from pybackend_sdk.testing.model_calls import ModelCalls
    from pybackend_sdk.testing.model_table import ModelTable


_NO_CALLS_NOW = (
    "BLS is only supported during the 'execute' function. Models can be called after 'initialize' has returned and "
    "before 'finalize' is called."
)


class HarnessRuntime(Runtime):
    """One model's services; each is available in the same part of the model's life as in a server.

    Args:
        instance_name: for messages.
        model_directory: the result of ``get_model_dir()``.
        modules: the model's own modules.
        log: receives the model's lines.
        table: other models.
        metrics: custom metrics.
        calls: runs BLS requests.
    """

    reason = "It is available from 'initialize' until 'finalize'."

    def __init__(
        self,
        instance_name: str,
        model_directory: str,
        modules: ModelModules,
        log: ModelLog,
        table: "ModelTable",
        metrics: "MetricRegistry",
        calls: "ModelCalls",
    ) -> None:
        self.instance_name = instance_name
        self.model_directory = model_directory
        self.modules = modules
        self._log = log
        self._table = table
        self._metrics = metrics
        self._calls = calls
        self._has_metrics = self._has_control = self._serves = False
        self._new_stream: Optional[Callable[[Exchange], ResponseStream]] = None

    # Phases

    def begin_initialize(self) -> None:
        """Make metrics and model control available."""
        self._has_metrics = self._has_control = True

    def begin_serving(self, new_stream: "Callable[[Exchange], ResponseStream]") -> None:
        """Make requests and BLS calls possible."""
        self._new_stream = new_stream
        self._serves = True

    def begin_finalize(self) -> None:
        """End BLS calls and model control."""
        self._has_control = self._serves = False

    def end(self) -> None:
        """End all services."""
        self._has_metrics = self._has_control = self._serves = False

    def say(self, level: "Logger.LogLevel", message: str) -> None:
        """Write a line to the model's log on behalf of the server."""
        frame = sys._getframe(1)
        self.log(level, frame.f_code.co_filename, frame.f_lineno, message)

    # Services for the SDK

    def log(self, level: int, file: str, line: int, message: str) -> None:
        self._log.add(Logger.LogLevel(level), file, line, message)

    def infer(self, request: "InferenceRequest", decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        if not self._serves:
            raise TritonModelException(_NO_CALLS_NOW)
        return self._calls.infer(request, decoupled)

    def infer_async(self, request: "InferenceRequest", decoupled: bool) -> "Awaitable[Any]":
        if not self._serves:
            raise TritonModelException(_NO_CALLS_NOW)
        return self._calls.infer_async(request, decoupled)

    def response_sender(self, request: "InferenceRequest") -> InferenceResponseSender:
        assert self._new_stream is not None  # no request arrives earlier
        return InferenceResponseSender._create(self._new_stream(request._key))

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        cancelled: bool = request._key.cancelled
        return cancelled

    def create_metric_family(self, name: str, description: str, kind: int) -> object:
        if not self._has_metrics:
            return super().create_metric_family(name, description, kind)
        return self._metrics.create_family(self.instance_name, name, MetricKind(kind))

    def load_model(self, model_name: str, config: str, files: Optional[Dict[str, bytes]]) -> None:
        if not self._has_control:
            super().load_model(model_name, config, files)
        self._table.load(self.instance_name, model_name, config, files)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        if not self._has_control:
            super().unload_model(model_name, unload_dependents)
        self._table.unload(model_name)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        if not self._has_control:
            return super().is_model_ready(model_name, model_version)
        return self._table.is_ready(self.instance_name, model_name, model_version)
