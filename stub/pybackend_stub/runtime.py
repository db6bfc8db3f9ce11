"""The SDK's runtime inside a stub: reaches the host through the channel or the output pipe."""

from typing import TYPE_CHECKING, Any, Awaitable, Dict, List, Mapping, Optional, Union

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import Runtime
from pybackend_stub.model_output import write_record
from pybackend_wire.messages import MetricChange

if TYPE_CHECKING:
    from pybackend_sdk.request import InferenceRequest
    from pybackend_sdk.response import InferenceResponse, ResponseIterator
    from pybackend_sdk.response_sender import InferenceResponseSender
    from pybackend_stub.host_calls import LoadCalls, StubMetrics
    from pybackend_stub.model_calls import ModelCalls
    from pybackend_stub.responder import Responder
    from pybackend_stub.tensor_io import OutputWriter

_NO_CALLS_NOW = (
    "BLS is only supported during the 'execute' function. Models can be called after 'initialize' has returned and "
    "before 'finalize' is called."
)


class StubRuntime(Runtime):
    """The services of the host that a model can use through ``pb_utils``."""

    reason = "It is available from 'initialize' until 'finalize'."

    def __init__(self, model_directory: str, instance_name: str, backend_settings: "Mapping[str, str]") -> None:
        self.model_directory = model_directory
        self.instance_name = instance_name
        self.backend_settings = backend_settings
        # runs BLS calls; None until ``initialize`` has returned and from ``finalize`` on
        self.models: Optional[ModelCalls] = None
        self.metrics: Optional[StubMetrics] = None
        # loads and unloads models; None before ``initialize`` and from ``finalize`` on
        self.control: Optional[LoadCalls] = None
        self.responder: Optional[Responder] = None
        self.outputs: Optional[OutputWriter] = None

    def log(self, level: int, file: str, line: int, message: str) -> None:
        """Send a line to the host, whose log level decides whether it appears."""
        if not write_record(int(level), file, line, message):
            super().log(level, file, line, message)

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        return self.responder is not None and self.responder.is_cancelled(request._key)

    def response_sender(self, request: "InferenceRequest") -> "InferenceResponseSender":
        assert self.responder is not None  # no request arrives earlier
        return self.responder.sender(request)

    def infer(self, request: "InferenceRequest", decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        if self.models is None:
            raise TritonModelException(_NO_CALLS_NOW)
        return self.models.infer(request, decoupled)

    def infer_async(self, request: "InferenceRequest", decoupled: bool) -> "Awaitable[Any]":
        if self.models is None:
            raise TritonModelException(_NO_CALLS_NOW)
        return self.models.infer_async(request, decoupled)

    def create_metric_family(self, name: str, description: str, kind: int) -> object:
        if self.metrics is None:
            return super().create_metric_family(name, description, kind)
        return self.metrics.create_family(name, description, kind)

    def create_metric(self, family: object, labels: "Dict[str, str]", buckets: "Optional[List[float]]") -> object:
        if self.metrics is None:
            return super().create_metric(family, labels, buckets)
        return self.metrics.create(family, labels, buckets)

    def increment_metric(self, metric: object, value: float) -> None:
        assert self.metrics is not None  # every metric was made by it
        self.metrics.change(metric, MetricChange.INCREMENT, value)

    def set_metric(self, metric: object, value: float) -> None:
        assert self.metrics is not None
        self.metrics.change(metric, MetricChange.SET, value)

    def observe_metric(self, metric: object, value: float) -> None:
        assert self.metrics is not None
        self.metrics.change(metric, MetricChange.OBSERVE, value)

    def metric_value(self, metric: object) -> float:
        assert self.metrics is not None
        return self.metrics.value(metric)

    def drop_metric(self, handle: object) -> None:
        if self.metrics is not None:
            self.metrics.drop(handle)

    def load_model(self, model_name: str, config: str, files: "Optional[Dict[str, bytes]]") -> None:
        if self.control is None:
            super().load_model(model_name, config, files)
        else:
            self.control.load(model_name, config, files)

    def unload_model(self, model_name: str, unload_dependents: bool) -> None:
        if self.control is None:
            super().unload_model(model_name, unload_dependents)
        else:
            self.control.unload(model_name, unload_dependents)

    def is_model_ready(self, model_name: str, model_version: str) -> bool:
        if self.control is None:
            return super().is_model_ready(model_name, model_version)
        return self.control.is_ready(model_name, model_version)

    def output_buffer(self, nbytes: int) -> "Optional[memoryview]":
        return None if self.outputs is None else self.outputs.buffer(nbytes)
