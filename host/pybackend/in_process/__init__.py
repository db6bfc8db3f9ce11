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
    TritonError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from pybackend.in_process.model import InferenceRequest, Model, ModelBatchFlag, ModelTxnPropertyFlag
from pybackend.in_process.options import LogFormat, ModelControlMode, Options, RateLimitMode
from pybackend.in_process.server import Server
from pybackend.in_process.tensor import DataType, MemoryType, Tensor

__all__ = [
    "AlreadyExistsError",
    "AsyncResponseIterator",
    "CancelledError",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "MemoryType",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "ResponseIterator",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]
