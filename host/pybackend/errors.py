"""The host's exception tree. Leaves carry an :class:`ErrorCode`, which only front ends translate.

PybackendError
├── InferenceError          a request, a model or an instance failed; has a code
│   ├── UnknownModelError   no such model or version exists
│   ├── NotServingError     the version exists but is not serving
│   ├── FullQueueError      as many requests wait as may
│   └── UnknownSequenceError  no sequence of this id has started at this version
├── ModelLoadError          a model version cannot be loaded; has a code
│   ├── ModelConfigError    its configuration is wrong; names file, line and field
│   └── ModelEnvironmentError  its environment cannot be obtained or used; names archive or directory
└── ServerError             the server cannot start or go on (repository, ports)
    └── SettingError        a setting is wrong, or contradicts another
"""

from __future__ import annotations

from pybackend_wire.errors import ErrorCode

__all__ = [
    "ErrorCode",
    "FullQueueError",
    "InferenceError",
    "ModelConfigError",
    "ModelEnvironmentError",
    "ModelLoadError",
    "NotServingError",
    "PybackendError",
    "ServerError",
    "SettingError",
    "UnknownModelError",
    "UnknownSequenceError",
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
"""Text of each code in logs and load reasons: ``<text>: <message>``."""


class PybackendError(Exception):
    """Base of all errors that this package raises deliberately."""


class InferenceError(PybackendError):
    """A request that cannot be answered, or was not answered, with a result."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        super().__init__(message)
        self.message = message  # text for the client, verbatim
        self.code = code  # the kind of failure; front ends map it to a status

    def again(self) -> InferenceError:
        """A fresh copy of this error, for an error that is stored and raised more than once.

        Each raise adds frames to an exception's traceback, and the frames keep everything they refer to alive.
        """
        return type(self)(self.message, self.code)


class UnknownModelError(InferenceError):
    """No model of this name exists, or it has no such version."""


class AmbiguousModelError(UnknownModelError):
    """Several namespaces have a model of this name, and the request does not name the namespace."""


class NotServingError(InferenceError):
    """The model, or its version, exists but accepts no requests at present."""


class FullQueueError(InferenceError):
    """As many requests wait for the model as its configuration allows."""


class UnknownSequenceError(InferenceError):
    """A request continues a sequence that has not started at this version of the model."""


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
    """A configuration that does not parse, contradicts itself or requests an unsupported feature."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_ARG) -> None:
        super().__init__(message, code)


class ModelEnvironmentError(ModelLoadError):
    """An environment that cannot be obtained, or whose Python this host cannot start."""


class ServerError(PybackendError):
    """The server cannot start or go on; ``str()`` is one sentence for the terminal."""


class SettingError(ServerError):
    """A setting is wrong, or contradicts another; ``str()`` begins with ``Error:``, as the reference's texts do."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Error: {message}")


def invalid(message: str) -> InferenceError:
    """An error with the code INVALID_ARG."""
    return InferenceError(message, ErrorCode.INVALID_ARG)
