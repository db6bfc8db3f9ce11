"""Exceptions under test: some are the model's and become responses, others are the test's own and must reach it."""

import asyncio
import os
import threading
from typing import List

import pybackend_sdk
import pybackend_stub
import pybackend_wire
from pybackend_sdk.error import format_exception

_OURS = tuple(
    os.path.dirname(str(package.__file__)) + os.sep for package in (pybackend_sdk, pybackend_stub, pybackend_wire)
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
        """Remember an exception."""
        with self._lock:
            self._errors.append(error)

    def raise_first(self) -> None:
        """Raise the first exception kept since the last call, if there is one."""
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]
