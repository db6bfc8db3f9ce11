"""Errors in a test of a model. Each message says what was found, what was expected and what to do."""

import asyncio
import os
import threading
from typing import List

import pybackend_sdk
import pybackend_stub
import pybackend_wire
from pybackend_sdk.error import TritonError, format_exception


class HarnessError(Exception):
    """Base class of the harness's own errors."""


class ModelDirectoryError(HarnessError):
    """There is no such model, or no such version, at that path."""


class ConfigError(HarnessError):
    """The model's configuration is missing or wrong."""


class LoadError(HarnessError):
    """The model cannot be loaded; the exception from its code, if there was one, is the cause of this one."""


class InputError(HarnessError):
    """A server would refuse this request, so the model would never see it."""


class OutputError(HarnessError):
    """The outputs of a response do not match the configuration."""


class NoResponse(HarnessError):
    """No response arrived; a server's client would wait on."""


class FinalizeError(HarnessError):
    """``finalize`` raised an exception, or the model could not be ended."""


class InferenceFailed(HarnessError):
    """The response is an error. The exception from the model, if there was one, is the cause of this one.

    Attributes:
        error: code and message, as a client receives them.
    """

    def __init__(self, error: TritonError) -> None:
        super().__init__(error.message())
        self.error = error


_OURS = tuple(
    os.path.dirname(str(file)) + os.sep
    for file in (__file__, pybackend_sdk.__file__, pybackend_stub.__file__, pybackend_wire.__file__)
)


def format_error(error: BaseException) -> str:
    """Format an exception with its location, leaving out frames outside the model's code."""
    return format_exception(error, [*_OURS, "<frozen importlib"])


def contained(error: BaseException) -> bool:
    """Whether a server answers with this exception; others are for the test, such as Ctrl-C or ``pytest.fail()``."""
    return isinstance(error, (Exception, SystemExit, GeneratorExit, asyncio.CancelledError))


class ModelException(Exception):
    """An exception of a model in another process. The text is what a server would log about it, with its traceback."""


class PendingFailures:
    """Exceptions of the test's own code that only models would have seen; the test gets them at its next call."""

    def __init__(self) -> None:
        self._errors: List[BaseException] = []
        self._lock = threading.Lock()

    def keep(self, error: BaseException) -> None:
        with self._lock:
            self._errors.append(error)

    def raise_first(self) -> None:
        """Raise the first exception kept since the last call, if there is one."""
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]
