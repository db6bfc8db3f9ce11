"""Prepares a model's environment without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from pybackend.author_files.apart import begin_apart
from pybackend.environment.provider import EnvironmentProvider, ModelEnvironment
from pybackend.errors import ModelEnvironmentError, ModelLoadError, PybackendError

_CLEARING_S = 5.0
"""Time limit for removing a partly unpacked environment."""


async def open_environment(provider: EnvironmentProvider, path: Path) -> ModelEnvironment:
    """Open an environment; it is kept until it is released.

    Raises:
        ModelLoadError: the environment is unavailable, or this host cannot run its Python.
    """
    cancelled = threading.Event()
    opening = await begin_apart(provider.open, path, cancelled)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        cancelled.set()
        opening.add_done_callback(_let_go)
        await asyncio.wait({opening}, timeout=_CLEARING_S)  # its thread does not keep the process from ending
        raise
    except ModelLoadError:
        raise
    except PybackendError as error:  # package installers raise other errors
        raise ModelEnvironmentError(str(error)) from error


def _let_go(opening: asyncio.Future[ModelEnvironment]) -> None:
    """Nobody waits any more: release the environment, or ignore the failure."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().release()
