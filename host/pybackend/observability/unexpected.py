"""Unexpected exceptions: they are logged, and end only the work that raised them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


def log_unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handler for :meth:`asyncio.loop.set_exception_handler`: logs unhandled exceptions of callbacks and tasks."""
    work = context.get("task") or context.get("future") or context.get("handle") or "the event loop"
    log.error("%s (%s)", context.get("message", "unexpected failure"), work, exc_info=context.get("exception"))


async def repeat(period_s: float, *actions: Callable[[], None]) -> None:
    """Run actions periodically until cancelled, even if they raise."""
    while True:
        await asyncio.sleep(period_s)
        for action in actions:
            try:
                action()
            except Exception:  # the next round may succeed
                log.exception("%s failed and is retried in %g s", action.__qualname__, period_s)
