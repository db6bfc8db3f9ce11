"""Watches what an instance executes, with a look about once a second: what lasts, what nobody wants, what is never answered."""

from __future__ import annotations

import asyncio
import logging

from pybackend.inference.pending import mention
from pybackend.instance.executor import InstanceExecutor
from pybackend.instance.in_flight import Activity
from pybackend.instance.plan import InstancePlan
from pybackend.instance.stacks import Stack, place
from pybackend.observability.model_output import ModelOutput

log = logging.getLogger(__name__)

LONG_NS = 10_000_000_000
"""An execution of this length deserves a line in the log, unless the model's executions often last that long."""

_UNUSUAL = 2
"""One that lasts so many times as long as the longest one before it is unusual."""


class LongExecutions:
    """Notices executions that last much longer than others."""

    def __init__(self) -> None:
        self._number = 0
        self._age_ns = 0
        self._longest_ns = 0
        self._noticed = False

    def notices(self, number: int, age_ns: int) -> bool:
        """True if an execution has become unusually long; only once for each.

        Args:
            number: of the execution, 0 if none runs.
            age_ns: how long it has run.
        """
        if number != self._number:
            self._longest_ns = max(self._longest_ns, self._age_ns)
            self._number, self._noticed = number, False
        self._age_ns = age_ns
        if self._noticed or age_ns < max(LONG_NS, _UNUSUAL * self._longest_ns):
            return False
        self._noticed = True
        return True

    def forget(self) -> None:
        """The process has died: the length of its last execution says nothing."""
        self._number = self._age_ns = 0
        self._noticed = False


class ExecutionWatch:
    """Watches the executions of one instance.

    Args:
        executor: has them.
        output: labels lines about the instance.
    """

    def __init__(self, executor: InstanceExecutor, output: ModelOutput) -> None:
        self._executor = executor
        self._output = output
        self._long = LongExecutions()
        self._telling: asyncio.Task[None] | None = None
        self._abandoned_ns = 0
        self._before: Activity | None = None
        self._has_collected = False

    def look(self, plan: InstancePlan, now_ns: int) -> None:
        """Have dropped response senders found, and the log say where an execution is that has become unusually long."""
        self._find_dropped()
        if plan.readiness_limit_s is None:
            return  # somebody sits at a debugger
        oldest, busy_ns = self._executor.oldest, self._executor.busy_ns(now_ns)
        if self._long.notices(0 if oldest is None else oldest.number, busy_ns):
            self._telling = asyncio.create_task(self._tell(plan, busy_ns // 1_000_000_000))

    def _find_dropped(self) -> None:
        """Have the stub look for dropped senders, once whenever it owes answers and has been silent since the last look.

        A sender in a reference cycle, such as that of an exception kept in a variable, exists until the garbage collector
        runs. In a process that does nothing, that would be never.
        """
        executions = self._executor.executions
        if executions.in_flight or not executions.streaming:
            self._before = None
            return
        before, self._before = self._before, executions.activity
        if self._before != before:
            self._has_collected = False
        elif not self._has_collected and executions.session is not None:
            self._has_collected = True
            executions.session.collect()

    async def _tell(self, plan: InstancePlan, busy_s: int) -> None:
        model, oldest = plan.load.model, self._executor.oldest
        requests = mention([] if oldest is None else oldest.pending)
        where = place(await self.stacks(), model.model_file)
        log.warning(
            "instance '%s' has run `execute` for %d s, for %s: %s. `pybackend stack %s` shows all its threads",
            self._executor.name,
            busy_s,
            requests.text,
            f"it is at {where}" if where else "it does not say where it is",
            model.model_name,
            extra=self._output.labels(requests.ids, requests.traces),
        )

    async def stacks(self) -> list[Stack]:
        """The stacks of its threads and coroutines; empty if it has no process, or one that does not tell."""
        session = self._executor.executions.session
        return [] if session is None else await session.stacks.read()

    def is_abandoned(self, limit_s: float, now_ns: int) -> bool:
        """True if for this long nobody has waited for anything that it executes."""
        if not self._executor.is_abandoned:
            self._abandoned_ns = 0
            return False
        self._abandoned_ns = self._abandoned_ns or now_ns
        return now_ns - self._abandoned_ns >= limit_s * 1e9

    def forget(self) -> None:
        """The process has died."""
        self._long.forget()
        self._before = None
        self._abandoned_ns = 0
        if self._telling is not None:
            self._telling.cancel()
