"""The errors of the clients."""

from __future__ import annotations


class PyTritonClientError(Exception):
    """The base of all errors of these clients."""

    @property
    def message(self) -> str:
        """The text."""
        return str(self)


class PyTritonClientValueError(PyTritonClientError, ValueError):
    """An argument is wrong; nothing was sent."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """The URL is none of a server."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """There is no server, no model, or no answer in time."""


class PyTritonClientModelUnavailableError(PyTritonClientError):
    """The server has no such model, or no such version of it."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client is closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """The model takes single samples only."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The function, or the server, has failed."""


class PyTritonClientQueueFullError(PyTritonClientError):
    """So many requests wait that there is no place for another one."""
