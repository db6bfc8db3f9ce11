"""Renews worn processes of a version that serves: a new one starts beside the old one and takes its place, and no request waits."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from pybackend.errors import PybackendError
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.settings import InstanceState
from pybackend.model.processes import ModelProcesses

log = logging.getLogger(__name__)

SEQUENCES_LIMIT_S = 600.0
"""How long the sequences at a process that was renewed may go on."""

_RETRY_S = 60.0
"""How soon a renewal that has failed is tried again."""


class ProcessRenewal:
    """Renews one process at a time, so that a version has one more at most, beside those that end.

    Args:
        renew: starts the successor of an instance and puts it in its place; returns it, or None if the instance has
            gone.
    """

    def __init__(
        self, processes: ModelProcesses, renew: Callable[[ModelInstance], Awaitable[ModelInstance | None]]
    ) -> None:
        self._processes = processes
        self._renew = renew
        self._task: asyncio.Task[None] | None = None
        self._not_before_s = 0.0

    def look(self) -> None:
        """Called about once a second while the version serves: renew a process if one is worn."""
        processes = self._processes
        # Those that still end, e.g. because of their sequences, bound the number of processes.
        is_busy = self._task is not None or len(processes.leaving) >= len(processes.instances)
        if is_busy or time.monotonic() < self._not_before_s or not processes.can_renew:
            return
        for instance in processes.instances:
            wear = instance.wear if instance.state is InstanceState.READY else ""
            if wear:
                self._task = asyncio.create_task(self._run(instance, wear))
                return

    async def _run(self, instance: ModelInstance, wear: str) -> None:
        pid, labels = instance.pid, instance.output.labels()
        try:
            successor = await self._renew(instance)
        except (PybackendError, OSError) as error:
            self._not_before_s = time.monotonic() + _RETRY_S
            log.error(  # noqa: TRY400  the reason is in the text
                "instance '%s' stays in process %s, which %s: a new one cannot start: %s. It is tried again in %g s",
                instance.name,
                pid,
                wear,
                error,
                _RETRY_S,
                extra=labels,
            )
        else:
            if successor is not None:
                log.info(
                    "instance '%s' goes on in process %s: process %s %s, and ends when nothing needs it",
                    instance.name,
                    successor.pid,
                    pid,
                    wear,
                    extra=labels,
                )
        finally:
            self._task = None

    async def end(self) -> None:
        """Break off a renewal that goes on; no other begins unless :meth:`look` is called."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
