"""The errors of the client.

ClientError
├── WrongInputError         an input does not fit the model; nothing was sent
├── UnreachableError        there is no connection; nothing was sent
├── ConnectionLostError     the connection ended before the answer; the server may have executed the request
├── DeadlineError           there is no answer in time
└── RefusedError            the server has answered with an error; has a status
    ├── InvalidRequestError     the request does not fit the model
    ├── ModelNotFoundError      there is no such model or version
    ├── AccessError             the request lacks a key, or the right one
    ├── UnavailableError        not at the moment; a model that has begun may say so, too
    └── ModelFailedError        the model, or the server, has failed
"""

from __future__ import annotations


class ClientError(Exception):
    """The base of all errors that the client raises."""


class WrongInputError(ClientError, ValueError):
    """An input does not fit the model; the message names both sides."""


class UnreachableError(ClientError, ConnectionError):
    """There is no connection to the server, so nothing was sent."""


class ConnectionLostError(ClientError, ConnectionError):
    """The connection ended before the answer. The server may have executed the request."""


class DeadlineError(ClientError, TimeoutError):
    """There is no answer in time."""


class RefusedError(ClientError):
    """The server has answered with an error. The status is that of HTTP, or gRPC's as text."""

    def __init__(self, message: str, status: int | str) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class InvalidRequestError(RefusedError):
    """The request does not fit the model."""


class ModelNotFoundError(RefusedError):
    """There is no such model, or no such version of it."""


class AccessError(RefusedError):
    """The request lacks a key, or the right one."""


class UnavailableError(RefusedError):
    """Not at the moment. The server says so before it executes a request; a model may say so after it has begun."""


class ModelFailedError(RefusedError):
    """The model, or the server, has failed."""


_UNKNOWN = "Request for unknown model"
_RESTRICTED = "is restricted, expecting header"

_BY_STATUS: dict[int | str, type[RefusedError]] = {
    400: InvalidRequestError, 401: AccessError, 403: AccessError, 404: ModelNotFoundError, 429: UnavailableError, 503: UnavailableError,
    "INVALID_ARGUMENT": InvalidRequestError, "NOT_FOUND": ModelNotFoundError, "UNAUTHENTICATED": AccessError,
    "PERMISSION_DENIED": AccessError, "UNAVAILABLE": UnavailableError, "RESOURCE_EXHAUSTED": UnavailableError,
}  # fmt: skip


def refused(message: str, status: int | str) -> RefusedError:
    """The error for an answer of the server."""
    kind = _BY_STATUS.get(status, ModelFailedError)
    if kind is InvalidRequestError and message.startswith(_UNKNOWN):
        kind = ModelNotFoundError
    if kind is UnavailableError and _RESTRICTED in message:
        kind = AccessError
    return kind(message, status)
