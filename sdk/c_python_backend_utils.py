"""The name of Triton's native module: the classes of ``triton_python_backend_utils`` and a few seldom used ones."""

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.logger import Logger, async_event_future_done_callback
from pybackend_sdk.metrics import Metric, MetricFamily, MetricKind
from pybackend_sdk.model_control import is_model_ready, load_model, unload_model
from pybackend_sdk.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    SharedMemory,
    shared_memory,
)
from pybackend_sdk.response import InferenceResponse, ResponseIterator
from pybackend_sdk.response_sender import InferenceResponseSender
from pybackend_sdk.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "async_event_future_done_callback",
    "is_model_ready",
    "load_model",
    "shared_memory",
    "unload_model",
]
