"""The host's exception tree. A leaf carries an :class:`ErrorCode`; front ends translate codes, nobody else does.

PybackendError
├── InferenceError          a request, a model or an instance failed; has a code
├── ModelLoadError          a model version cannot be loaded; has a code
│   ├── ModelConfigError    its configuration is wrong; names file, line and field
│   └── ModelEnvironmentError  the Python that it names cannot be had or used; names archive or directory
└── ServerError             the server cannot start or go on (settings, repository, ports)
"""

from __future__ import annotations

from pybackend_wire.errors import ErrorCode

__all__ = [
    "ErrorCode",
    "InferenceError",
    "ModelConfigError",
    "ModelEnvironmentError",
    "ModelLoadError",
    "PybackendError",
    "ServerError",
]

CODE_TEXT: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN: "Unknown",
    ErrorCode.INTERNAL: "Internal",
    ErrorCode.NOT_FOUND: "Not found",
    ErrorCode.INVALID_ARG: "Invalid argument",
    ErrorCode.UNAVAILABLE: "Unavailable",
    ErrorCode.UNSUPPORTED: "Unsupported",
    ErrorCode.ALREADY_EXISTS: "Already exists",
    ErrorCode.CANCELLED: "Cancelled",
}
"""How a code reads in logs and load reasons: ``<text>: <message>``."""


class PybackendError(Exception):
    """Every error that this package raises on purpose."""


class InferenceError(PybackendError):
    """A request that cannot be, or was not, answered with a result.

    Attributes:
        code: what kind of failure; front ends map it to a status.
        message: what the client reads, verbatim.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def again(self) -> InferenceError:
        """The same, for raising what is kept and told more than once.

        An exception keeps the frames that it was raised through, with all that they refer to, and more of them each time.
        """
        return InferenceError(self.message, self.code)


class ModelLoadError(PybackendError):
    """A model (version) that cannot be loaded; ``str()`` is the reason without the code's text."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        super().__init__(message)
        self.message = message
        self.code = code

    def reason(self) -> str:
        """The reason as shown in the model table: ``Internal: <message>``."""
        return f"{CODE_TEXT[self.code]}: {self.message}"


class ModelConfigError(ModelLoadError):
    """A configuration that does not parse, contradicts itself, or asks for what cannot be served."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_ARG) -> None:
        super().__init__(message, code)


class ModelEnvironmentError(ModelLoadError):
    """An environment that cannot be had, or that this host cannot start a Python from."""


class ServerError(PybackendError):
    """The server cannot start or go on; ``str()`` is one sentence for the terminal."""
