"""How an instance comes back after its process has died: attempt after attempt, whatever goes wrong in one of them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Protocol

from pybackend.errors import ModelLoadError
from pybackend.instance.backoff import RestartBackoff
from pybackend.observability.model_output import ModelOutput

log = logging.getLogger(__name__)


class Supervised(Protocol):
    """An instance without a process.

    Attributes:
        name: for the log.
        output: labels lines about it.
    """

    name: str
    output: ModelOutput

    @property
    def trouble(self) -> str:
        """Why it does not serve, in a sentence."""

    async def end_leftovers(self) -> None:
        """End what its last process has left behind."""

    async def start_again(self) -> None:
        """Start a process, and initialise the model there."""

    def on_start_failed(self, error: Exception) -> None:
        """An attempt has failed; there will be another one."""

    def on_given_up(self) -> None:
        """Too many have failed; there may be other ones later."""


async def restart(instance: Supervised, backoff: RestartBackoff) -> None:
    """Bring a new process to life, however often it takes.

    Whatever an attempt raises counts as its failure: nothing but success, a limit without further attempts, and
    cancellation ends this.

    Args:
        instance: whose process has just died; ``backoff`` knows of that death.
        backoff: counts its restarts, and says when the next one is due.
    """
    given_up = False
    while True:
        failure = await _failure_of(instance.end_leftovers())
        if backoff.is_over:
            if not given_up:
                log.error(
                    "instance '%s' is given up after %d restarts. %s",
                    instance.name,
                    backoff.restarts,
                    instance.trouble,
                    extra=instance.output.labels(),
                )
            given_up = True
            instance.on_given_up()
            if not backoff.tries_again:
                return
        await backoff.wait()
        failure = failure or await _failure_of(instance.start_again())
        if failure is None:
            log.info("instance '%s' is restarted", instance.name, extra=instance.output.labels())
            return
        expected = isinstance(failure, (ModelLoadError, OSError))
        log.error(
            "instance '%s' cannot be restarted: %s",
            instance.name,
            failure,
            exc_info=None if expected else failure,
            extra=instance.output.labels(),
        )
        instance.on_start_failed(failure)


async def _failure_of(part: Awaitable[None]) -> Exception | None:
    try:
        await part
    except Exception as error:  # noqa: BLE001  the instance would be lost without a word
        return error
    return None
