"""Sends executions to the stub of an instance, and finds those that last too long."""

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.pending import PendingRequest, RequestHolder, RunningExecution, mention
from pybackend.inference.request import FollowingSteps
from pybackend.instance.execution import Execution, ExecutionOwner, InstanceOwner
from pybackend.instance.in_flight import Activity, ExecutionsInFlight
from pybackend.instance.lent_inputs import encoded_request, taken_back
from pybackend.instance.resources import ResourceGate, ResourceTable
from pybackend.instance.services import StubServices
from pybackend.instance.session import StubSession
from pybackend.instance.settings import InstanceSettings
from pybackend.instance.stacks import Stack, place
from pybackend.instance.stub_life import unhealthy
from pybackend.ipc.channel import StubChannel
from pybackend.modelconfig.schema import RateLimit
from pybackend.observability.model_output import ModelOutput
from pybackend_wire.host_messages import Then
from pybackend_wire.messages import TAIL, TensorPlace

log = logging.getLogger(__name__)


class InstanceExecutor(RequestHolder):
    """One instance, as its scheduler sees it: takes executions and sends them to the stub.

    See :class:`pybackend.scheduler.scheduler.BatchExecutor`.
    """

    def __init__(self, name: str, version: str, owner: InstanceOwner, services: StubServices) -> None:
        self.name = name
        self.is_up = False  # there is a process that can serve, be it busy or not
        # how the last stub ended, completing the sentence "The process ..."; empty if none ever did
        self.death_cause = ""
        self.gate: ResourceGate | None = None  # None if executions need no resources
        self.executions = executions = ExecutionsInFlight(version, owner)
        self.prefetch = executions.prefetch
        self._in_flight = executions.in_flight
        self._owner = owner
        self._services = services
        self._concurrency = 1
        self._cancels_calls = False
        # executions of other models in the process that this instance serves, and that wait for something meanwhile
        self.holders: list[RunningExecution] = []

    def limit_by(self, table: ResourceTable, limit: RateLimit) -> None:
        """Say what an execution needs; once, before there is any."""
        gate = ResourceGate(table, limit, self._owner.on_available)
        table.add(gate)
        self.gate = gate

    def begin(self, session: StubSession, settings: InstanceSettings) -> None:
        self._concurrency = settings.initialize.concurrency
        self._cancels_calls = settings.options.cancels_calls
        self.executions.begin(session, settings)

    def lose(self, cause: str, code: ErrorCode = ErrorCode.INTERNAL) -> tuple[list[PendingRequest], int]:
        """The stub is dead; returns the requests that fail, and how many wait for another stub.

        ``cause`` completes the sentence "The process ...".
        """
        self.death_cause = cause
        return self.executions.lose(self, InferenceError(unhealthy(self.name, cause), code))

    # For the scheduler

    @property
    def has_stub(self) -> bool:
        return self.executions.session is not None

    @property
    def has_place(self) -> bool:
        """True if an execution could run beside those that do."""
        return len(self._in_flight) < self._concurrency and not (self.holders or self.prefetch.rests)

    @property
    def is_idle(self) -> bool:
        """True if an execution would start at once."""
        return (
            self.is_up
            and len(self._in_flight) < self._concurrency
            and not self.prefetch.rests
            # last: an instance whose gate is closed waits for its turn from now on
            and (self.gate is None or self.gate.is_open)
        )

    @property
    def sent_ahead(self) -> int:
        """Number of requests that wait in the stub's socket."""
        if len(self._in_flight) <= self._concurrency:
            return 0
        return sum(len(execution.pending) for execution in islice(self._in_flight.values(), self._concurrency, None))

    @property
    def prefetch_capacity(self) -> int:
        """How many more executions may wait in the stub's socket.

        None if they would hold resources that others could use.
        """
        return self.prefetch.capacity() if self.is_up and self.gate is None else 0

    def execute(self, batch: list[PendingRequest], owner: ExecutionOwner | None = None) -> None:
        """Send one execution; it leaves with whatever else goes to this stub in this turn of the loop.

        Args:
            owner: is told of its outcome; the model if None.
        """
        executions = self.executions
        session = executions.session
        assert session is not None
        executions.last_number = number = executions.last_number + 1
        executions.request_count += len(batch)
        owner = self._owner if owner is None else owner
        gate = self.gate if self.is_up else None  # samples, which run before the instance is ready, need nothing
        if gate is not None:
            gate.begin()
        channel, lent = session.channel, session.inputs
        encoded: list[tuple[Any, ...]] = []
        paused = False
        try:
            for pending in batch:
                pending.taken_by, pending.execution, pending.index = self, number, len(encoded)
                encoded.append(encoded_request(channel, lent, pending.request))
                paused = paused or pending.paused
        except OSError as error:
            for pending in batch:
                taken_back(lent, pending.request)
            what = f"cannot hand tensor memory to instance '{self.name}': {error.strerror}"
            owner.on_refused(batch, InferenceError(what, ErrorCode.UNAVAILABLE))
            if gate is not None:
                gate.end()
            return
        if batch[0].request.following is not None and session.process.is_shared:
            channel.post(_then(channel, number, batch[0].request.following))
        channel.post_execute(number, encoded)
        ahead = bool(self._in_flight) and self._concurrency == 1
        if paused:
            for pending in batch:
                if pending.paused:
                    executions.flow(pending, paused=True)
        self._in_flight[number] = Execution(
            number, batch, time.monotonic_ns(), owner, gate, channel.next_frame, ahead, len(batch)
        )
        if ahead and not self.prefetch.is_timed:
            self.prefetch.start_timer()

    # For requests that were sent

    def cancel(self, pending: PendingRequest) -> None:
        session, number = self.executions.session, pending.execution
        if session is None:
            return
        session.cancel(number, pending.index)
        execution = self.executions.find(number)
        if execution is None or not self._cancels_calls:
            return
        if all(each.cancelled or each.answered for each in execution.pending):
            self._services.on_cancelled(session.caller, number)

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Keep the model from sending more responses to a request, or let it go on."""
        self.executions.flow(pending, paused=paused)

    @property
    def running(self) -> list[RunningExecution]:
        """The executions that the stub works at; others may wait in its socket."""
        return [*self.holders, *self._as_running(self._running_numbers)]

    @property
    def oldest(self) -> Execution | None:
        """The execution that runs for longest, None if none runs."""
        return next(iter(self._in_flight.values()), None)

    def busy_ns(self, now_ns: int) -> int:
        """How long that has run, 0 if none runs. The time before its debugger gave the terminal back does not count."""
        session = self.executions.session
        if not self._in_flight or session is None:
            return 0
        return max(0, now_ns - max(self.prefetch.busy_since_ns(), session.left_terminal_ns))

    @property
    def is_abandoned(self) -> bool:
        """True if it executes, and nobody waits for any of it."""
        return bool(self._in_flight) and all(
            pending.cancelled or pending.answered
            for execution in self._in_flight.values()
            for pending in execution.pending
        )

    @property
    def _running_numbers(self) -> list[int]:
        return list(islice(self._in_flight, self._concurrency))

    def _as_running(self, numbers: Sequence[int]) -> list[RunningExecution]:
        session = self.executions.session
        caller = None if session is None else session.caller
        return [RunningExecution(self, number, caller) for number in numbers]

    def is_running(self, pending: PendingRequest) -> bool:
        return pending.execution in self._running_numbers and not self.holders

    def blockers(self, pending: PendingRequest) -> Sequence[RunningExecution]:
        """The execution that a request is part of; while that waits in the stub's socket, those that it waits for."""
        if self.holders:
            return self.holders
        numbers = self._running_numbers
        return self._as_running([pending.execution] if pending.execution in numbers else numbers)


def _then(channel: StubChannel, number: int, following: FollowingSteps) -> Then:
    tensors = [
        TensorPlace(each.name, each.datatype, each.shape, TAIL, channel.append_tail(each.data), len(each.data or b""))
        for each in following.tensors
    ]
    return Then(number, tensors, following.program)


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


class ExecutionMonitor:
    """Finds executions of one instance that last too long, that nobody waits for, or that are never answered."""

    def __init__(self, executor: InstanceExecutor, output: ModelOutput) -> None:
        self._executor = executor
        self._output = output
        self._long = LongExecutions()
        self._telling: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._abandoned_ns = 0
        self._before: Activity | None = None
        self._has_collected = False

    def check(self, settings: InstanceSettings, now_ns: int) -> None:
        """Have dropped response senders found, the log say where an unusually long execution is, and one beyond its limit ended."""
        self._find_dropped()
        if settings.readiness_limit_s is None:
            return  # somebody sits at a debugger
        oldest, busy_ns = self._executor.oldest, self._executor.busy_ns(now_ns)
        if oldest is not None and 0 < settings.options.execution_limit_s * 1e9 < busy_ns and self._ending is None:
            self._ending = asyncio.create_task(self._end(settings, oldest.number))
        if self._long.notices(0 if oldest is None else oldest.number, busy_ns):
            self._telling = asyncio.create_task(self._tell(settings, busy_ns // 1_000_000_000))

    def _find_dropped(self) -> None:
        """Have the stub look for dropped senders, once whenever it owes answers and has been silent since the last check.

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

    async def _tell(self, settings: InstanceSettings, busy_s: int) -> None:
        oldest = self._executor.oldest
        requests = mention([] if oldest is None else oldest.pending)
        log.warning(
            "instance '%s' has run `execute` for %d s, for %s: %s. `pybackend stack %s` shows all its threads",
            self._executor.name,
            busy_s,
            requests.text,
            await self._place(settings),
            settings.stub.model.model_name,
            extra=self._output.labels(requests.ids, requests.traces),
        )

    async def _end(self, settings: InstanceSettings, number: int) -> None:
        """Kill the stub because of an execution that takes too long, and say where it is."""
        where = await self._place(settings)
        oldest, session = self._executor.oldest, self._executor.executions.session
        limit_s = settings.options.execution_limit_s
        self._ending = None
        if oldest is None or session is None or oldest.number != number:
            return  # it has ended meanwhile
        requests = mention(oldest.pending)
        log.error(
            "instance '%s' is killed, because `execute` ran for more than %g s, its limit, for %s: %s. `pybackend stack %s` shows "
            "where an instance is before that",
            self._executor.name,
            limit_s,
            requests.text,
            where,
            settings.stub.model.model_name,
            extra=self._output.labels(requests.ids, requests.traces),
        )
        session.kill(f"ran `execute` for more than {limit_s:g} s, its limit, and was killed")

    async def _place(self, settings: InstanceSettings) -> str:
        where = place(await self.stacks(), settings.stub.model.model_file)
        return f"it is at {where}" if where else "it does not say where it is"

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
        self._long.forget()
        self._before = None
        self._abandoned_ns = 0
        if self._telling is not None:
            self._telling.cancel()
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
