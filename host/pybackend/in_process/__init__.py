"""A server in the caller's process: calls instead of HTTP, by the names of the reference's package ``tritonserver``.

It knows the composition root and admissions, and has no rules about models. The engine runs in a separate thread
(:mod:`pybackend.in_process.host_thread`); callers' threads and event loops hand requests to it through a
:class:`~pybackend.in_process.crossing.Crossing`.
"""

from pybackend.in_process.answers import AsyncResponseIterator, InferenceResponse, ResponseIterator
from pybackend.in_process.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotStartedError,
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
    WrongTypeError,
)
from pybackend.in_process.memory import (
    DeviceOrMemoryType,
    DLDeviceType,
    MemoryAllocator,
    MemoryBuffer,
    MemoryType,
    default_memory_allocators,
)
from pybackend.in_process.metrics import Metric, MetricFamily, MetricFormat, MetricKind
from pybackend.in_process.model import InferenceRequest, Model, ModelBatchFlag, ModelTxnPropertyFlag
from pybackend.in_process.options import (
    InstanceGroupKind,
    LogFormat,
    ModelControlMode,
    ModelLoadDeviceLimit,
    Options,
    RateLimiterResource,
    RateLimitMode,
)
from pybackend.in_process.server import ModelDictionary, Server
from pybackend.in_process.tensor import DataType, Tensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "CancelledError",
    "DLDeviceType",
    "DataType",
    "DeviceOrMemoryType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "MemoryAllocator",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelDictionary",
    "ModelLoadDeviceLimit",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "NotStartedError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "WrongTypeError",
    "default_memory_allocators",
]
