"""The errors of bound functions and of those who bind them; those of clients are in :mod:`pybackend_bind.client`.

PyTritonError
├── PyTritonValidationError         an argument, or the result of a function, is wrong; a ValueError, too
├── PyTritonInvalidOperationError   not now, such as a name that is taken
├── PyTritonBadParameterError       a parameter is wrong
├── PyTritonModelConfigError        a configuration is wrong
├── PyTritonRuntimeError            anything else, such as a server that has ended
├── PyTritonUnrecoverableError      raised by a function: it cannot serve any more, and the server stops
└── RequestError                    raised by a function: its clients get this text and this code
"""

from __future__ import annotations

from pybackend_wire.errors import ErrorCode


class PyTritonError(Exception):
    """The base of all errors of this package but those of clients."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PyTritonValidationError(PyTritonError, ValueError):
    """An argument, or the result of a function, is wrong."""


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible now."""


class PyTritonBadParameterError(PyTritonError):
    """A parameter is wrong."""


class PyTritonModelConfigError(PyTritonError):
    """A configuration is wrong."""


class PyTritonRuntimeError(PyTritonError):
    """Anything else, such as a server that has ended."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by a function: it cannot serve any more, and the server stops."""


class RequestError(PyTritonError):
    """Raised by a function to refuse its requests: their clients get the text as it is, with this code."""

    def __init__(self, message: str, code: str = "INVALID_ARG") -> None:
        super().__init__(message)
        if code not in ErrorCode.__members__:
            raise ValueError(f"'{code}' is not a code. There are {', '.join(ErrorCode.__members__)}")
        self.code = ErrorCode[code]
