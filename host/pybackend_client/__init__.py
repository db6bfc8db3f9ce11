"""A client for servers of the v2 protocol: arrays in and out by name, over HTTP and gRPC, for threads and for asyncio."""

from pybackend_client.client import AsyncClient, AsyncModel, Client, Model
from pybackend_client.errors import (
    AccessError,
    ClientError,
    ConnectionLostError,
    DeadlineError,
    InvalidRequestError,
    ModelFailedError,
    ModelNotFoundError,
    RefusedError,
    UnavailableError,
    UnreachableError,
    WrongInputError,
)
from pybackend_client.retries import Retries
from pybackend_client.tensors import Answer, Metadata

__all__ = [
    "AccessError", "Answer", "AsyncClient", "AsyncModel", "Client", "ClientError", "ConnectionLostError", "DeadlineError",
    "InvalidRequestError", "Metadata", "Model", "ModelFailedError", "ModelNotFoundError", "RefusedError", "Retries", "UnavailableError",
    "UnreachableError", "WrongInputError",
]  # fmt: skip
