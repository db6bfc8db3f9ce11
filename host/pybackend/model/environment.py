"""Making a model's environment ready while the event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from pybackend.environment.provider import EnvironmentProvider, ModelEnvironment
from pybackend.errors import ModelEnvironmentError, ModelLoadError, PybackendError


async def open_environment(provider: EnvironmentProvider, path: Path) -> ModelEnvironment:
    """An environment that is kept until it is released.

    Raises:
        ModelLoadError: it cannot be had, or this host cannot start a Python from it.
    """
    cancelled = threading.Event()
    opening = asyncio.get_running_loop().run_in_executor(None, provider.open, path, cancelled)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        cancelled.set()
        opening.add_done_callback(_let_go)
        raise
    except ModelLoadError:
        raise
    except PybackendError as error:  # whoever installs packages has errors of its own
        raise ModelEnvironmentError(str(error)) from error


def _let_go(opening: asyncio.Future[ModelEnvironment]) -> None:
    """Nobody waits any more: what came of it is released, why it failed is nobody's concern."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().release()
