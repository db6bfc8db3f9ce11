"""Exceptions under test: which are the model's and become answers, and which are the test's own and must reach it."""

import asyncio
import os
import threading
from typing import List

import pybackend_sdk
import pybackend_wire
from pybackend_sdk.error import format_exception

_OURS = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (pybackend_sdk, pybackend_wire))


def format_error(error: BaseException) -> str:
    """An exception's text with where it happened, without frames that are not the model's business."""
    return format_exception(error, [*_OURS, "<frozen importlib"])


def contained(error: BaseException) -> bool:
    """Whether a server answers with this exception; else it is meant for the test, such as Ctrl-C or ``pytest.fail()``."""
    return isinstance(error, (Exception, SystemExit, GeneratorExit, asyncio.CancelledError))


class PendingFailures:
    """What a test's own code raised where only models would have seen it, until the test itself looks."""

    def __init__(self) -> None:
        self._errors: List[BaseException] = []
        self._lock = threading.Lock()

    def keep(self, error: BaseException) -> None:
        """Remember an exception."""
        with self._lock:
            self._errors.append(error)

    def raise_first(self) -> None:
        """Raise the first exception since the last look, if there is one."""
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]
