"""Attempts to obtain memory that are repeated while others can be made to release some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pybackend.errors import ErrorCode, InferenceError

_T = TypeVar("_T")


def obtain(attempt: Callable[[], _T], on_shortage: Callable[[], bool]) -> _T:
    """The result of an attempt, which is repeated after each shortage that ``on_shortage`` could relieve.

    Args:
        attempt: obtains memory, or raises UNAVAILABLE.
        on_shortage: makes others release memory; returns False if nobody can.

    Raises:
        InferenceError: any error of ``attempt``; UNAVAILABLE only when nobody can release memory any more.
    """
    while True:
        try:
            return attempt()
        except InferenceError as error:
            if error.code is not ErrorCode.UNAVAILABLE or not on_shortage():
                raise
