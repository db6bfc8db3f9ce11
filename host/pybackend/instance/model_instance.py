"""One instance of a model: a stub that is kept alive, and the executions that are under way in it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.instance.session import StubSession, StubSettings, unhealthy
from pybackend.instance.stub_process import StubLauncher
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import IDLE_NS
from pybackend.observability.logging import model_log
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import TAIL

log = logging.getLogger(__name__)

PREFETCH_NS = 1_000_000
"""How much work, by the model's measured execution time, may wait in a stub's socket."""

MOST_PREFETCHED = 64
"""Executions in one frame; more would not make a frame cheaper and would keep the queue's order from acting."""

SLOW_NS = 5_000_000
"""An execution that runs for this long may run for ever: nothing more is sent to wait behind it."""

MOST_LOSSES = 3
"""A request that was not begun waits for the next stub, but only so often: it may be what kills them."""

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 10.0
HEALTHY_AFTER_S = 60.0
"""An instance that lived this long is restarted as if it had never died."""


class InstanceState(Enum):
    """Where an instance is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """The last restart failed; another one follows."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True)
class InstancePlan:
    """How to bring a stub of this instance to life.

    Attributes:
        settings: identity and limits.
        args: what ``initialize`` receives.
        output_names: configured outputs, which is what a request means that names none.
        copy_inputs: True if models get private copies of their inputs.
    """

    settings: StubSettings
    args: dict[str, str]
    output_names: tuple[str, ...]
    copy_inputs: bool


class InstanceOwner(Protocol):
    """The model that an instance belongs to."""

    def on_executed(self, execution: Execution, responses: Sequence[InferenceResponse], result: heard.Result) -> None:
        """An execution is answered; ``responses`` match its requests."""

    def on_lost(self, instance: ModelInstance, begun: list[PendingRequest], waiting: list[PendingRequest]) -> None:
        """The stub died: ``begun`` are its failures, ``waiting`` it had not looked at."""

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """An execution could not be sent."""

    def on_available(self) -> None:
        """An instance can take work again, or has given up for now."""


class Execution:
    """One call of ``execute``, from being sent to being answered."""

    __slots__ = ("pending", "sent_ns")

    def __init__(self, pending: list[PendingRequest], sent_ns: int) -> None:
        self.pending = pending
        self.sent_ns = sent_ns


class ModelInstance:
    """Runs executions, one after another, and restarts its stub when it dies."""

    def __init__(self, name: str, version: str, launcher: StubLauncher, owner: InstanceOwner) -> None:
        self.name = name
        self.state = InstanceState.STARTING
        self.death_cause = ""
        self._version = version
        self._launcher = launcher
        self._owner = owner
        self._plan: InstancePlan | None = None
        self._session: StubSession | None = None
        self._in_flight: deque[Execution] = deque()
        self._answered = 0
        self._execution_ns = 0.0
        self._last_execution_ns = 0
        self._last_answer_ns = 0
        self._ready_since = 0.0
        self._deaths = 0
        self._supervision: asyncio.Task[None] | None = None
        self._watching = False
        self._loop = asyncio.get_running_loop()

    # Life

    async def load(self, settings: StubSettings, config_json: str | None) -> dict[str, Any] | None:
        """Start the first stub and import the model; returns its completed configuration, if it completes one.

        Raises:
            ModelLoadError: the model's code failed, or its process died.
        """
        process = self._launcher.start()
        try:
            self._session = StubSession(process, settings, self)
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
        if self._session is None:
            await self.load(plan.settings, None)
        assert self._session is not None
        await self._session.initialize(plan.args, plan.output_names, copy_inputs=plan.copy_inputs)
        if self._session is None:  # it died in the turn in which it got ready
            raise ModelLoadError(unhealthy(self.name, self.death_cause))
        self.state = InstanceState.READY
        self._ready_since = time.monotonic()
        self._answered = 0

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
        return in_time

    @property
    def pid(self) -> int | None:
        """Process id of the stub, None while there is none."""
        return None if self._session is None else self._session.pid

    # Work

    @property
    def is_idle(self) -> bool:
        """True if an execution would start at once."""
        return self.state is InstanceState.READY and not self._in_flight

    @property
    def room(self) -> int:
        """How many more executions may wait in the stub's socket; none before their length is known."""
        if self.state is not InstanceState.READY or not self._execution_ns:
            return 0
        room = min(MOST_PREFETCHED, int(PREFETCH_NS / self._execution_ns)) - len(self._in_flight)
        if room <= 0 or not self._in_flight:
            return max(0, room)
        since_ns = max(self._in_flight[0].sent_ns, self._last_answer_ns)
        return room if time.monotonic_ns() - since_ns < SLOW_NS else 0

    def execute(self, batch: list[PendingRequest]) -> None:
        """Send one execution; it leaves with whatever else goes to this stub in this turn of the loop."""
        session = self._session
        assert session is not None
        for pending in batch:
            pending.begun = True
        try:
            encoded = [self._encode(session, pending.request) for pending in batch]
        except OSError as error:
            for pending in batch:
                _take_back(session, pending)
            what = f"cannot hand tensor memory to instance '{self.name}': {error.strerror}"
            self._owner.on_refused(batch, InferenceError(what, ErrorCode.UNAVAILABLE))
            return
        session.execute(encoded)
        self._last_execution_ns = now_ns = time.monotonic_ns()
        self._in_flight.append(Execution(batch, now_ns))
        if len(self._in_flight) > 1 and not self._watching:
            self._watching = True
            self._loop.call_later(PREFETCH_NS / 1e9, self._watch, self._answered)

    def _watch(self, answered_before: int) -> None:
        """Several executions are under way: if none was answered for a while, the first of them is a slow one."""
        if len(self._in_flight) < 2 or self._session is None:
            self._watching = False
        elif self._answered == answered_before:
            # Once is enough: until it has answered all it was sent, the stub keeps nothing any more.
            self._watching = False
            self._session.nudge()
        else:
            self._loop.call_later(PREFETCH_NS / 1e9, self._watch, self._answered)

    def _encode(self, session: StubSession, request: InferenceRequest) -> tuple[Any, ...]:
        """A request as :class:`pybackend_wire.messages.ExecuteRequest`."""
        inputs = []
        for tensor in request.inputs:
            lease: Any = tensor.lease
            if lease is None:
                data = tensor.data
                nbytes = len(data)  # type: ignore[arg-type]  # bytes have arrived by now
                offset = session.place_inline(data, nbytes)
                inputs.append((tensor.name, tensor.datatype, tensor.shape, TAIL, offset, nbytes))
            else:
                session.lend(lease)
                inputs.append((tensor.name, tensor.datatype, tensor.shape, lease.segment, lease.offset, lease.nbytes))
        options = None
        if request.id or request.has_options:
            options = (
                request.id,
                request.correlation_id,
                request.flags,
                request.priority,
                request.timeout_us,
                request.parameters,
            )
        return (inputs, request.requested_outputs or None, options)

    def on_result(self, result: heard.Result, tail: bytes) -> None:
        """The oldest execution is answered."""
        if not self._in_flight:
            raise RemoteProtocolError("a result for which there is no execution")
        execution = self._in_flight[0]
        if len(result.results) != len(execution.pending):
            raise RemoteProtocolError("a result with the wrong number of answers")
        session = self._session
        assert session is not None
        version = self._version
        responses = []
        for pending, item in zip(execution.pending, result.results, strict=True):
            request = pending.request
            response = InferenceResponse(request.model_name, version, request.id)
            if item.error is None:
                outputs, on_release = session.outputs.tensors_of(item, tail)
                response.set_result(outputs, item.parameters, on_release)
            else:
                response.error = InferenceError(item.error.message, ErrorCode(item.error.code))
            responses.append(response)
        self._in_flight.popleft()
        self._answered += 1
        self._last_answer_ns = time.monotonic_ns()
        took_ns = max(1, result.done_ns - result.began_ns)
        self._execution_ns = took_ns if not self._execution_ns else 0.8 * self._execution_ns + 0.2 * took_ns
        self._owner.on_executed(execution, responses, result)

    def on_log(self, line: heard.Log) -> None:
        """The model logs a line."""
        model_log(self.name, line.level, line.file, line.line, line.message)

    # Memory

    def trim(self, dropped_inputs: Sequence[int], now_ns: int) -> None:
        """Let go of input segments that were dropped, and of output segments after a while without work."""
        if self._session is None:
            return
        for segment in dropped_inputs:
            self._session.detach_input(segment)
        idle = not self._in_flight and now_ns - self._last_execution_ns >= IDLE_NS
        if idle and self._last_execution_ns and self._session.outputs.trim():
            self._last_execution_ns = 0

    # Death

    def on_end(self, session: StubSession, cause: str) -> None:
        """The stub is gone."""
        if session is not self._session:
            return  # one that failed to load, after its successor was started
        self._session = None
        self.death_cause = cause
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        if self.state is InstanceState.READY:
            log.error("%s", unhealthy(self.name, cause))
            self.state = InstanceState.RESTARTING
            self._supervision = self._loop.create_task(self._restart())
        if not in_flight:
            return
        count = max(0, min(session.executions_begun() - self._answered, len(in_flight)))
        begun = [pending for execution in in_flight[:count] for pending in execution.pending]
        waiting = [pending for execution in in_flight[count:] for pending in execution.pending]
        again = []
        for pending in waiting:
            pending.begun = False
            pending.losses += 1
            if _take_back(session, pending) and pending.losses < MOST_LOSSES:
                again.append(pending)
            else:
                begun.append(pending)
        self._owner.on_lost(self, begun, again)

    async def _restart(self) -> None:
        """Bring a new stub to life, however often it takes."""
        assert self._plan is not None
        if time.monotonic() - self._ready_since > HEALTHY_AFTER_S:
            self._deaths = 0
        while self.state is not InstanceState.READY:
            if self._deaths:
                await asyncio.sleep(min(FIRST_BACKOFF_S * 2 ** (self._deaths - 1), LONGEST_BACKOFF_S))
            self._deaths += 1
            try:
                await self.initialize(self._plan)
                log.info("instance '%s' is restarted", self.name)
            except (ModelLoadError, OSError) as error:
                self.state = InstanceState.FAILED
                self.death_cause = str(error)
                session, self._session = self._session, None
                if session is not None:
                    session.kill()  # it said why and ends by itself, unless a thread of the model's keeps it alive
                log.error("instance '%s' cannot be restarted: %s", self.name, error)  # noqa: TRY400  expected
            self._owner.on_available()


def _take_back(session: StubSession, pending: PendingRequest) -> bool:
    """The input memory of a request is the host's again; False if the stub had already given some of it back."""
    leases: list[Any] = [tensor.lease for tensor in pending.request.inputs if tensor.lease is not None]
    taken = [session.take_back(lease) for lease in leases]
    return all(taken)
