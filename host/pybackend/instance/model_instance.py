"""One instance of a model: the executions that are under way in its stub, and what becomes of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.instance.backoff import RestartBackoff
from pybackend.instance.encoding import encoded_request, taken_back
from pybackend.instance.execution import Execution, ExecutionTimes, unanswered
from pybackend.instance.launch import StubSettings
from pybackend.instance.launcher import StubLauncher
from pybackend.instance.owner import InstanceOwner
from pybackend.instance.plan import InstancePlan, InstanceState
from pybackend.instance.readiness import ReadinessProbe
from pybackend.instance.services import StubServices
from pybackend.instance.session import StubSession, unhealthy
from pybackend.instance.warmup import WarmupRun
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.observability.model_output import ModelOutput
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import ATTENDED_FROM

log = logging.getLogger(__name__)

PREFETCH_NS = 1_000_000
"""How much work, by the model's measured execution time, may wait in a stub's socket."""

MOST_PREFETCHED = 64
"""Executions in one frame; more would not make a frame cheaper and would keep the queue's order from acting."""

NO_ROOM_NS = 1_000_000_000
"""After a stub has handed work back, which models that call others do each time, nothing is sent ahead for so long."""

SLOW_NS = 5_000_000
"""An execution that runs for this long may run for ever: nothing more is sent to wait behind it."""

MOST_HANDED_BACK = 1000
"""Times that a stub may hand work back without having answered any: an honest one does it once per execution that lasts."""

REST_S = 0.001
"""Before an instance that has handed work back is again sent some to run beside other work; twice as long each time."""

MOST_LOSSES = 3
"""A request that was not begun waits for the next stub, but only so often: it may be what kills them."""


class ModelInstance:
    """Runs executions, one after another, and restarts its stub when it dies."""

    def __init__(
        self, name: str, version: str, launcher: StubLauncher, owner: InstanceOwner, services: StubServices
    ) -> None:
        self.name = name
        self.state = InstanceState.STARTING
        self.death_cause = ""
        self._start_failure = ""
        self.output = ModelOutput(name)
        self._version = version
        self._launcher = launcher
        self._owner = owner
        self._services = services
        self._plan: InstancePlan | None = None
        self._session: StubSession | None = None
        self._probe = ReadinessProbe()
        self._concurrency = 1
        self._sent = 0
        self._in_flight: dict[int, Execution] = {}
        self._streaming: dict[int, Execution] = {}
        self._handed_back = 0
        self._no_room_until_ns = 0
        self._rests = False
        self._answered = 0
        self._execution_ns = 0.0
        self._last_answer_ns = 0
        self._backoff = RestartBackoff()
        self._supervision: asyncio.Task[None] | None = None
        self._watching = False
        self._loop = asyncio.get_running_loop()

    # Life

    async def load(self, settings: StubSettings, config_json: str | None) -> dict[str, Any] | None:
        """Start the first stub and import the model; returns its completed configuration, if it completes one.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
        process = await self._launcher.start(settings.launch)
        process.send_output_to(self.output)
        try:
            self._session = StubSession(process, settings, self, self._services)
        except (InferenceError, OSError) as error:
            process.discard()
            raise ModelLoadError(f"cannot start a model process: {error}", ErrorCode.UNAVAILABLE) from error
        return await self._session.load(config_json)

    async def initialize(self, plan: InstancePlan) -> None:
        """Initialise the model in the stub that :meth:`load` started, or in a new one.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
        self._plan = plan
        self._probe.limit_s = plan.readiness_limit_s
        if self._session is None:
            await self.load(plan.settings, None)
        assert self._session is not None
        await self._session.initialize(
            plan.args,
            plan.output_names,
            copy_inputs=plan.copy_inputs,
            decoupled=plan.decoupled,
            concurrency=plan.concurrency,
            reschedules=plan.reschedules,
        )
        self._concurrency = plan.concurrency
        self._sent = self._answered = self._handed_back = 0
        if plan.warmup:
            await self._warm_up(plan)
        if self._session is None:  # it died in the turn in which it got ready
            raise ModelLoadError(unhealthy(self.name, self.death_cause))
        self.state = InstanceState.READY
        self._backoff.on_ready()

    async def _warm_up(self, plan: InstancePlan) -> None:
        """Run the model's samples; until the instance is READY, schedulers have nothing for it."""
        model = self._owner
        self._owner = run = WarmupRun(model, plan.settings.model_name, self.execute)
        try:
            for sample in plan.warmup:
                if self._session is not None:
                    await run.run(sample)
        finally:
            if not self._in_flight and not self._streaming:  # else this load was given up, and no model asked for them
                self._owner = model
        self._execution_ns = 0.0  # the first execution of many a model is nothing to judge the others by

    async def stop(self, finalize_timeout_s: float | None) -> bool:
        """Finalize the model and end its stub; False if it had to be killed after the time-out, or at once for 0."""
        in_time = True
        self.state = InstanceState.STOPPING
        if self._supervision is not None:
            self._supervision.cancel()
        session = self._session
        if session is not None:
            try:
                async with asyncio.timeout(finalize_timeout_s):
                    await session.finalize()
            except TimeoutError:
                in_time = False
                if finalize_timeout_s:
                    log.warning(
                        "instance '%s' did not end within %.1f s and is killed. An `execute` or a `finalize` that waits "
                        "for something, or a thread that is no daemon, can be why",
                        self.name,
                        finalize_timeout_s,
                    )
                session.kill("did not end when it was told to and was killed")
                await session.finalize()
        self.state = InstanceState.STOPPED
        self._services.on_retired(self)
        return in_time

    @property
    def pid(self) -> int | None:
        """Process id of the stub, None while there is none."""
        return None if self._session is None else self._session.pid

    @property
    def session(self) -> StubSession | None:
        """The stub's present life, None while there is none."""
        return self._session

    @property
    def trouble(self) -> str:
        """Why it does not serve, in a sentence; empty if nothing ever happened."""
        return self._start_failure or (f"The process {self.death_cause}." if self.death_cause else "")

    # Work

    @property
    def is_idle(self) -> bool:
        """True if an execution would start at once."""
        return self.state is InstanceState.READY and len(self._in_flight) < self._concurrency and not self._rests

    @property
    def has_place(self) -> bool:
        """True if an execution could run beside those that do, now or once the stub is back."""
        if self.state is InstanceState.READY:
            return len(self._in_flight) < self._concurrency
        return self.state in {InstanceState.STARTING, InstanceState.RESTARTING, InstanceState.FAILED}

    @property
    def is_up(self) -> bool:
        """True if there is a process that can serve, be it busy or not."""
        return self.state is InstanceState.READY

    @property
    def room(self) -> int:
        """How many more executions may wait in the stub's socket; none before their length is known."""
        if self.state is not InstanceState.READY or not self._execution_ns or self._handed_back:
            return 0
        room = min(MOST_PREFETCHED, int(PREFETCH_NS / self._execution_ns)) - len(self._in_flight)
        if room <= 0 or not self._in_flight or self._concurrency > 1:
            return max(0, room) if self._concurrency == 1 else 0
        if self._no_room_until_ns and time.monotonic_ns() < self._no_room_until_ns:
            return 0
        if next(iter(self._in_flight)) < ATTENDED_FROM:
            return 0  # what waits behind that could not be had back
        return room if time.monotonic_ns() - self._busy_since_ns() < SLOW_NS else 0

    @property
    def running(self) -> list[int]:
        """Numbers of the executions that the stub works at; others may wait in its socket."""
        return list(islice(self._in_flight, self._concurrency))

    def execute(self, batch: list[PendingRequest]) -> None:
        """Send one execution; it leaves with whatever else goes to this stub in this turn of the loop."""
        session = self._session
        assert session is not None
        self._sent = number = self._sent + 1
        for index, pending in enumerate(batch):
            pending.runner, pending.execution, pending.index = self, number, index
        try:
            encoded = [encoded_request(session, pending.request) for pending in batch]
        except OSError as error:
            for pending in batch:
                taken_back(session, pending.request)
            what = f"cannot hand tensor memory to instance '{self.name}': {error.strerror}"
            self._owner.on_refused(batch, InferenceError(what, ErrorCode.UNAVAILABLE))
            return
        session.execute(number, encoded)
        for pending in batch:
            if pending.paused:
                self.flow(pending, paused=True)
        self._in_flight[number] = Execution(number, batch, time.monotonic_ns())
        if len(self._in_flight) > 1 and not self._watching and self._concurrency == 1:
            self._watching = True
            self._loop.call_later(PREFETCH_NS / 1e9, self._watch, self._answered)

    def _watch(self, answered_before: int) -> None:
        """Several executions are under way: if none was answered for a while, the first of them is a slow one."""
        if len(self._in_flight) < 2 or self._session is None:
            self._watching = False
        elif self._answered == answered_before:
            # Once is enough: the stub sends what it has kept, and hands back what it has not begun.
            self._watching = False
            self._session.nudge()
        else:
            self._loop.call_later(PREFETCH_NS / 1e9, self._watch, self._answered)

    def _busy_since_ns(self) -> int:
        """When the oldest execution under way can have begun."""
        oldest = next(iter(self._in_flight.values()))
        return oldest.sent_ns if self._concurrency > 1 else max(oldest.sent_ns, self._last_answer_ns)

    def on_result(self, result: heard.Result, tail: bytes) -> None:
        """``execute`` has returned."""
        execution = self._in_flight.get(result.execution)
        if execution is None:
            raise RemoteProtocolError("a result for which there is no execution")
        if len(result.results) != len(execution.pending):
            raise RemoteProtocolError("a result with the wrong number of answers")
        now_ns = time.monotonic_ns()
        began_ns, start_ns, end_ns = result.began_ns, result.infer_start_ns, result.infer_end_ns
        if not execution.sent_ns <= began_ns <= start_ns <= end_ns <= now_ns:
            began_ns, start_ns, end_ns = execution.sent_ns, execution.sent_ns, now_ns  # a stub's word is worth no more
        responses = [
            None if item is None else self._response(pending, item, tail, final=True)
            for pending, item in zip(execution.pending, result.results, strict=True)
        ]
        assert self._session is not None
        again = execution.take_rescheduled(responses, self._session)
        del self._in_flight[result.execution]  # only once all is checked: what is in flight is answered in any case
        execution.times = ExecutionTimes(began_ns, start_ns, end_ns)
        self._answered += 1
        self._handed_back = 0
        self._last_answer_ns = now_ns
        took_ns = max(1, result.done_ns - result.began_ns)
        self._execution_ns = took_ns if not self._execution_ns else 0.8 * self._execution_ns + 0.2 * took_ns
        execution.unanswered -= len(responses) - responses.count(None)
        if again:
            self._reschedule(again)
        if execution.unanswered:
            self._streaming[execution.number] = execution
        self._owner.on_executed(execution, responses)

    def on_rescheduled(self, rescheduled: heard.Rescheduled) -> None:
        """``execute`` is about to return; the model wants to see some of its requests once more."""
        execution = self._in_flight.get(rescheduled.execution)
        if execution is None or self._plan is None or not self._plan.reschedules:
            raise RemoteProtocolError("a request to be executed once more that the stub did not have")
        execution.reschedule(rescheduled.requests)

    def _reschedule(self, again: list[PendingRequest]) -> None:
        for pending in again:
            pending.runner, pending.execution = None, 0
            for tensor in pending.request.inputs:
                if isinstance(tensor.lease, ArenaLease):
                    tensor.lease.share()  # the stub still has it, and gives it back
        self._owner.on_rescheduled(again)

    def on_respond(self, respond: heard.Respond, tail: bytes) -> None:
        """A response was sent by a sender."""
        number = respond.execution
        execution = self._in_flight.get(number) or self._streaming.get(number)
        if execution is None or respond.request >= len(execution.pending):
            raise RemoteProtocolError("a response for which there is no request")
        pending = execution.pending[respond.request]
        if pending.execution != number:
            raise RemoteProtocolError("a response to a request that is to be executed once more")
        if respond.result is not None:
            response = self._response(pending, respond.result, tail, final=respond.final)
        elif not respond.final:
            raise RemoteProtocolError("a response without content and without the final flag")
        elif pending.answered:
            raise RemoteProtocolError("a final flag for a request that is answered")
        else:
            response = InferenceResponse(pending.request.model_name, self._version, pending.request.id, empty=True)
        execution.responded = True
        if respond.final:
            execution.unanswered -= 1
            if not execution.unanswered:
                self._streaming.pop(number, None)
        self._owner.on_response(execution, pending, response)

    def _response(
        self, pending: PendingRequest, item: heard.RequestResult, tail: bytes, *, final: bool
    ) -> InferenceResponse:
        if pending.answered:
            raise RemoteProtocolError("a response to a request that is answered")
        request = pending.request
        response = InferenceResponse(request.model_name, self._version, request.id, final=final)
        if item.error is None:
            assert self._session is not None
            outputs, on_release = self._session.outputs.tensors_of(item, tail)
            response.set_result(outputs, item.parameters, on_release)
        else:
            response.error = InferenceError(item.error.message, ErrorCode(item.error.code))
        return response

    def on_handed_back(self, executions: Sequence[int]) -> None:
        """The stub is busy, and gives back what it has not begun."""
        session = self._session
        assert session is not None
        self._handed_back += 1
        self._no_room_until_ns = time.monotonic_ns() + NO_ROOM_NS
        returned = [self._in_flight.get(number) for number in executions]
        waiting = []
        # All stays in flight until all is checked: if it is a lie, it ends with everything else that was in flight.
        for execution in returned:
            if execution is None or execution.responded or returned.count(execution) > 1:
                raise RemoteProtocolError("work handed back that the stub did not have")
            if not all(taken_back(session, pending.request) for pending in execution.pending):
                raise RemoteProtocolError("work handed back whose input the stub had given back")
            waiting += execution.pending
        if self._handed_back > MOST_HANDED_BACK and len(executions) == len(self._in_flight):
            raise RemoteProtocolError("all work is handed back")
        for number in executions:
            del self._in_flight[number]
        self._sent += 1  # a number is left out: to the stub, those that follow what it handed back were sent before
        for pending in waiting:
            pending.runner, pending.execution = None, 0
        if self._in_flight and self._concurrency > 1:
            # What runs there lets nothing run beside it for now, although it may: the model's code is busy, or no coroutine.
            self._rests = True
            self._loop.call_later(REST_S * (1 << min(self._handed_back, 10)), self._rested)
        self._owner.on_handed_back(waiting)

    def _rested(self) -> None:
        self._rests = False
        self._owner.on_available()

    def cancel(self, pending: PendingRequest) -> None:
        """Nobody waits for a request that was sent."""
        session, number = self._session, pending.execution
        if session is None:
            return
        session.cancel(number, pending.index)
        execution = self._in_flight.get(number) or self._streaming.get(number)
        if execution is None or self._plan is None or not self._plan.cancels_calls:
            return
        if all(each.cancelled or each.answered for each in execution.pending):
            self._services.on_cancelled(session, number)

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Keep the model from sending more responses to a request, or let it go on."""
        if self._session is not None:
            self._session.flow(pending.execution, pending.index, paused=paused)

    def lease_input(self, nbytes: int) -> ArenaLease:
        """Input memory of the model, for what its own requests are answered with."""
        return self._owner.lease(nbytes)

    # Readiness

    async def not_ready_reason(self) -> str:
        """Why the instance is not ready, by its own word if the model has an ``is_ready``; empty if it is."""
        session = self._session
        if self.state is not InstanceState.READY or session is None:
            return f"{unhealthy(self.name, '')} {self.trouble}".rstrip()
        if not session.has_is_ready:
            return ""
        return await self._probe.ask(session.probe)

    @property
    def has_is_ready(self) -> bool:
        """True if the model is to be asked."""
        return self._session is not None and self._session.has_is_ready

    def on_readiness(self, readiness: heard.Readiness) -> None:
        """The model's ``is_ready`` has returned."""
        if not self._probe.answer("" if readiness.ready else readiness.reason or "is_ready() gave no reason"):
            raise RemoteProtocolError("an answer about readiness that nobody asked for")

    # Memory

    def trim(self, dropped_inputs: Sequence[int], now_ns: int) -> None:
        """Called about once a second: enforce the limit of executions, and let go of memory that lay unused."""
        if self._session is None:
            return
        limit_s = self._plan.execution_limit_s if self._plan is not None else 0
        if limit_s and self._in_flight and now_ns - self._busy_since_ns() > limit_s * 1e9:
            self._session.kill(f"ran `execute` for more than {limit_s:g} s, its limit, and was killed")
        for segment in dropped_inputs:
            self._session.detach_input(segment)
        self._session.outputs.trim(now_ns)

    # Death

    def on_end(self, session: StubSession, cause: str) -> None:
        """The stub is gone."""
        if session is not self._session:
            return  # one that failed to load, after its successor was started
        self._session = None
        self.death_cause = cause
        self._start_failure = ""
        self._probe.answer(unhealthy(self.name, cause))
        in_flight, streaming = self._in_flight, self._streaming
        self._in_flight, self._streaming = {}, {}
        if self.state is InstanceState.READY:
            log.error("%s", unhealthy(self.name, cause))
            self.state = InstanceState.RESTARTING
            self._supervision = self._loop.create_task(self._restart())
        begun = list(unanswered(streaming.values()))
        again = []
        last_begun = session.last_begun()
        for execution in in_flight.values():
            for pending in unanswered([execution]):
                pending.runner = None
                if execution.number <= last_begun:
                    begun.append(pending)
                    continue
                pending.losses += 1
                if taken_back(session, pending.request) and pending.losses < MOST_LOSSES:
                    pending.execution = 0
                    again.append(pending)
                else:
                    begun.append(pending)
        self._owner.on_lost(self, begun, again)

    async def _restart(self) -> None:
        """Bring a new stub to life, however often it takes."""
        assert self._plan is not None
        self._backoff.on_death()
        while self.state is not InstanceState.READY:
            await self._plan.settings.end_leftovers()
            if self._plan.restart_limit and (restarts := self._backoff.restarts) >= self._plan.restart_limit:
                self.state = InstanceState.GIVEN_UP
                log.error("instance '%s' is given up after %d restarts. %s", self.name, restarts, self.trouble)
                self._owner.on_available()
                self._services.on_given_up()
                return
            await self._backoff.wait()
            try:
                await self.initialize(self._plan)
                log.info("instance '%s' is restarted", self.name)
            except (ModelLoadError, OSError) as error:
                self.state = InstanceState.FAILED
                self._start_failure = str(error)
                session, self._session = self._session, None
                if session is not None:
                    session.kill()  # it said why and ends by itself, unless a thread of the model's keeps it alive
                log.error("instance '%s' cannot be restarted: %s", self.name, error)  # noqa: TRY400  expected
            self._owner.on_available()
