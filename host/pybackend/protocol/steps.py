"""Work in steps: generators that yield every few milliseconds, so that a front end can serve others in between."""

import asyncio
from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")

Steps = Generator[None, None, _T]
"""Yields between its steps, and returns the result."""


def at_once(steps: Generator[object, None, _T]) -> _T:
    """Do all steps now, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


async def in_turns(steps: Steps[_T]) -> _T:
    """Do the steps in turns with other work of the event loop, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        await asyncio.sleep(0)
