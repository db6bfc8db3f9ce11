"""The errors of a server in the caller's process, by the reference's names."""

from __future__ import annotations

from pybackend.errors import ErrorCode, InferenceError, PybackendError


class TritonError(PybackendError):
    """Base of all errors that a call raises; ``str()`` is one sentence."""


class UnknownError(TritonError):
    """The reason is not known."""


class InternalError(TritonError):
    """A model, or the server, has failed."""


class NotFoundError(TritonError):
    """There is no such model, version or setting."""


class InvalidArgumentError(TritonError):
    """The call is wrong: it would fail every time."""


class UnavailableError(TritonError):
    """The server or the model does not serve now."""


class NotStartedError(InvalidArgumentError, UnavailableError):
    """There is no server now: it is not started, or stopped."""


class WrongTypeError(InvalidArgumentError, TypeError):
    """An argument is of a type that it cannot have, or there is no such argument."""


class UnsupportedError(TritonError):
    """The server, or the model, cannot do this."""


class AlreadyExistsError(TritonError):
    """Something of this name exists."""


class CancelledError(TritonError):
    """The request was cancelled."""


_BY_CODE: dict[ErrorCode, type[TritonError]] = {
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.INVALID_ARG: InvalidArgumentError,
    ErrorCode.UNAVAILABLE: UnavailableError,
    ErrorCode.UNSUPPORTED: UnsupportedError,
    ErrorCode.ALREADY_EXISTS: AlreadyExistsError,
    ErrorCode.CANCELLED: CancelledError,
}


def error_of(error: InferenceError) -> TritonError:
    """The error that a caller gets for one of the engine's."""
    return _BY_CODE.get(error.code, UnknownError)(error.message)
