"""Clients by the names of ``pytriton.client``."""

from pybackend_bind.client.clients import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pybackend_bind.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientQueueFullError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)

__all__ = [
    "AsyncioDecoupledModelClient", "AsyncioModelClient", "DecoupledModelClient", "FuturesModelClient", "ModelClient",
    "PyTritonClientClosedError", "PyTritonClientError", "PyTritonClientInferenceServerError", "PyTritonClientInvalidUrlError",
    "PyTritonClientModelDoesntSupportBatchingError", "PyTritonClientModelUnavailableError", "PyTritonClientQueueFullError",
    "PyTritonClientTimeoutError", "PyTritonClientValueError",
]  # fmt: skip
