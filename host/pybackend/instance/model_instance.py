"""One instance of a model: a process that serves it, through all the lives of its stub."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import mention
from pybackend.instance.execution import InstanceOwner
from pybackend.instance.executor import ExecutionMonitor, InstanceExecutor
from pybackend.instance.process_bounds import ProcessBounds
from pybackend.instance.services import StubServices
from pybackend.instance.session import EXIT_GRACE_S, StubSession
from pybackend.instance.settings import InstanceSettings, InstanceState, StubSettings
from pybackend.instance.stub_life import unhealthy
from pybackend.instance.warmup import WarmupRun
from pybackend.ipc import stub_messages as heard
from pybackend.observability.model_output import ModelOutput
from pybackend.observability.repeated_failures import RepeatedFailures
from pybackend.process.launcher import StubLauncher

log = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 10.0

HEALTHY_AFTER_S = 60.0
"""An instance that lived this long is restarted as if it had never died."""


class RestartBackoff:
    """The restarts of one instance.

    Args:
        limit: most restarts in a row before the instance is given up, 0 for any number.
        retry_s: how often an instance that was given up is tried again, 0 for never.
    """

    def __init__(self, limit: int = 0, retry_s: float = 0, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.restarts = 0
        self._limit = limit
        self._retry_s = retry_s
        self._clock_s = clock_s
        self._ready_at_s = 0.0
        self._hurried_at_s = -LONGEST_BACKOFF_S
        self._hurry = asyncio.Event()

    def on_ready(self) -> None:
        self._ready_at_s = self._clock_s()

    def on_death(self) -> None:
        if self._clock_s() - self._ready_at_s > HEALTHY_AFTER_S:
            self.restarts = 0

    @property
    def is_over(self) -> bool:
        """True if there were so many restarts that the instance is given up."""
        return 0 < self._limit <= self.restarts

    @property
    def tries_again(self) -> bool:
        """False if an instance that was given up stays as it is."""
        return self._retry_s > 0

    @property
    def delay_s(self) -> float:
        """How long the next restart waits; the first is due at once."""
        return min(FIRST_BACKOFF_S * 2 ** min(self.restarts - 1, 10), LONGEST_BACKOFF_S) if self.restarts else 0.0

    async def wait(self) -> None:
        """Wait until it is time for the next restart, and count it."""
        if self.is_over:
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry_s):
                    await self._hurry.wait()
        elif self.restarts:
            await asyncio.sleep(self.delay_s)
        self.restarts += 1

    def hurry(self) -> None:
        """Somebody needs the instance: if it was given up, try it now, but no more often than in the longest back-off."""
        now_s = self._clock_s()
        if self.is_over and now_s - self._hurried_at_s >= LONGEST_BACKOFF_S:
            self._hurried_at_s = now_s
            self._hurry.set()

    @property
    def prospect(self) -> str:
        """When the next restart is, in a sentence."""
        if self.is_over:
            if not self.tries_again:
                return f"It is not restarted any more: {self._limit} restarts in a row are its limit."
            return f"It is given up after {self._limit} restarts in a row: it is tried again in {self._retry_s:g} s, or at the next request."
        when = f"in {self.delay_s:g} s" if self.restarts else "now"
        most = f" of at most {self._limit}" if self._limit else ""
        return f"Restart {self.restarts + 1}{most} in a row begins {when}."


_COMES_BACK = frozenset({InstanceState.STARTING, InstanceState.RESTARTING, InstanceState.FAILED})


class ModelInstance:
    """Starts, initialises, warms up and ends a stub, and restarts it when it dies."""

    def __init__(
        self,
        name: str,
        version: str,
        launcher: StubLauncher,
        owner: InstanceOwner,
        services: StubServices,
        failures: RepeatedFailures,
    ) -> None:
        self.name = name
        self.state = InstanceState.STARTING
        self.output = ModelOutput(name, failures)
        # sends executions to it; what schedulers and requests see of the instance
        self.executor = InstanceExecutor(name, version, owner, services)
        self._executions = self.executor.executions
        self.monitor = ExecutionMonitor(self.executor, self.output)
        self.restart_count = 0
        self.renewal_count = 0
        self._bounds: ProcessBounds | None = None
        self._start_failure = ""
        self._is_offered = False
        self._launcher = launcher
        self._owner = owner
        self._services = services
        self._settings: InstanceSettings | None = None
        self.backoff = RestartBackoff()
        self._supervision: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def _enter(self, state: InstanceState) -> None:
        self.state = state
        self.executor.is_up = state is InstanceState.READY

    # Life

    async def load(self, settings: StubSettings, config_json: str | None) -> dict[str, Any] | None:
        """Start the first stub and import the model; returns its completed configuration, if it completes one.

        Raises ModelLoadError if the model's code failed, or its process died.
        """
        process = await self._launcher.start(settings.launch, self.output)
        try:
            executions = self._executions
            session = StubSession(
                process,
                settings,
                self,
                self._owner.arena.lease,
                self._on_end,
                executions.handlers(),
                executions.find_trace,
                self._services,
            )
        except (InferenceError, OSError) as error:
            process.discard()
            raise ModelLoadError(f"cannot start a model process: {error}", ErrorCode.UNAVAILABLE) from error
        self._executions.session = session
        return await session.load(config_json)

    async def initialize(self, settings: InstanceSettings) -> None:
        """Initialise the model in the stub that :meth:`load` started, or in a new one."""
        if self._settings is None:
            self.backoff = RestartBackoff(settings.options.restart_limit, settings.options.restart_retry_s)
        self._settings = settings
        if self.session is None:
            await self.load(settings.stub, None)
        session = self.session
        assert session is not None
        await session.initialize(settings.initialize)
        self.executor.begin(session, settings)
        if settings.warmup:  # until the instance is READY, schedulers have nothing for it
            run = WarmupRun(self.executor, settings.stub.model.model_name, self._owner.arena.lease)
            for sample in settings.warmup:
                if self.executor.has_stub:
                    await run.run(sample)
            self._executions.prefetch.forget_times()
        if self.session is None:  # it died in the turn in which it got ready
            raise ModelLoadError(unhealthy(self.name, self.executor.death_cause))
        self._bounds = bounds = ProcessBounds(self.name, self._executions, settings.options)
        if bounds.excess:
            raise ModelLoadError(
                f"instance '{self.name}' cannot serve: at its start, the process {bounds.excess}: raise it"
            )
        self._enter(InstanceState.READY)
        self.session.offer(offered=self._is_offered)
        self.backoff.on_ready()

    def offer(self, *, offered: bool) -> None:
        """Say whether calls that name no version are for this model: then others in its process may run it."""
        self._is_offered = offered
        if self.session is not None and self.state is InstanceState.READY:
            self.session.offer(offered=offered)

    def on_local_call(self, call: heard.LocalCall) -> None:
        """It was run in the process that it shares with others: another model called it, or a step of an ensemble came before."""
        times, done_ns, now_ns = (
            (call.began_ns, call.infer_start_ns, call.infer_end_ns),
            call.done_ns,
            time.monotonic_ns(),
        )
        if not times[0] <= times[1] <= times[2] <= done_ns <= now_ns:
            times, done_ns = (now_ns, now_ns, now_ns), now_ns  # a stub's word is worth no more
        if not call.of_step:
            self._services.on_local_call(call.error)
        if self._settings is not None and self._settings.outputs is not None:
            for output in call.new_outputs:
                self._settings.outputs.on_new_output(output.name, output.datatype, output.shape)
        self._owner.on_local_call(times, done_ns, call.batch_size, failed=call.error is not None)

    async def stop(self, finalize_timeout_s: float | None) -> bool:
        """Finalize the model and end its stub; False if it had to be killed after the time-out, or at once for 0."""
        in_time = True
        self._enter(InstanceState.STOPPING)
        if self._supervision is not None:
            self._supervision.cancel()
        session = self.session
        if session is not None:
            if session.process.is_shared and finalize_timeout_s is not None:
                finalize_timeout_s = max(finalize_timeout_s, EXIT_GRACE_S)  # to kill it would end other models, too
            try:
                async with asyncio.timeout(finalize_timeout_s):
                    await session.finalize()
            except TimeoutError:
                in_time = False
                if finalize_timeout_s:
                    log.warning(
                        "instance '%s' missed its %.1f s stop limit and is being killed. Likely causes: a blocked `execute` or "
                        "`finalize`, or a non-daemon thread",
                        self.name,
                        finalize_timeout_s,
                        extra=self.output.labels(),
                    )
                session.kill("did not end when it was told to and was killed")
                await session.finalize()
        self._enter(InstanceState.STOPPED)
        self._services.on_retired(self)
        if self.executor.gate is not None:
            self.executor.gate.close()
        return in_time

    @property
    def pid(self) -> int | None:
        return None if self.session is None else self.session.process.pid

    @property
    def session(self) -> StubSession | None:
        """The stub's present life, None while there is none."""
        return self._executions.session

    @property
    def trouble(self) -> str:
        """Why it does not serve, in a sentence; empty if nothing ever happened."""
        cause = self.executor.death_cause
        return self._start_failure or (f"The process {cause}." if cause else "")

    # Calls of the model

    @property
    def has_place(self) -> bool:
        """True if an execution could run beside those that do, now or once the stub is back."""
        return self.executor.has_place if self.executor.is_up else self.state in _COMES_BACK

    @property
    def is_busy(self) -> bool:
        """True while it has requests that are not answered."""
        return bool(self._executions.in_flight or self._executions.streaming)

    # Readiness

    async def not_ready_reason(self) -> str:
        """Why the instance is not ready, by its own word if the model has an ``is_ready``; empty if it is."""
        session = self.session
        if self.state is not InstanceState.READY or session is None:
            return f"{unhealthy(self.name, '')} {self.trouble}".rstrip()
        if not session.has_is_ready:
            return ""
        assert self._settings is not None
        return await session.readiness.ask(session.ask_readiness, self._settings.readiness_limit_s)

    # Memory

    def trim(self, dropped_inputs: Sequence[int], now_ns: int) -> None:
        """Called about once a second: enforce the limit of executions, and let go of memory that lay unused."""
        session = self.session
        if session is None:
            return
        if self._settings is not None:
            self.monitor.check(self._settings, now_ns)
        excess = self._bounds.excess if self._bounds is not None and self.state is InstanceState.READY else ""
        if excess:
            session.kill(f"{excess}, and was killed")
        for segment in dropped_inputs:
            session.inputs.detach(segment)
        session.outputs.trim(now_ns)

    @property
    def wear(self) -> str:
        """Why another instance should take its place, completing "the process ..."; empty if none should."""
        return "" if self._bounds is None else self._bounds.wear

    def succeed(self, other: Self) -> None:
        """It takes the place of another one, and goes on counting."""
        self.restart_count, self.renewal_count = other.restart_count, other.renewal_count + 1
        self.output.dropped_lines += other.output.dropped_lines

    def end_abandoned(self, limit_s: float, now_ns: int, *, is_needed: bool) -> None:
        """End the stub if nobody has waited for anything that it executes for some time.

        Another one follows if that is needed.
        """
        session = self.session
        if session is None or session.process.is_shared or not self.monitor.is_abandoned(limit_s, now_ns):
            return
        log.info(
            "instance '%s' was replaced, and executes for nobody: it is ended", self.name, extra=self.output.labels()
        )
        if not is_needed:
            self._enter(InstanceState.STOPPING)
        session.kill("executed for nobody, and was killed")

    @property
    def output_memory_bytes(self) -> int:
        return 0 if self.session is None else self.session.outputs.total_bytes

    # Death

    def _on_end(self, session: StubSession, cause: str) -> None:
        if session is not self.session:
            return  # one that failed to load, after its successor was started
        self._start_failure = ""
        self.monitor.forget()
        session.readiness.answer(unhealthy(self.name, cause))
        if self.state is not InstanceState.READY:
            self.executor.lose(cause)
            return
        self._enter(InstanceState.RESTARTING)
        self.backoff.on_death()
        self._supervision = self._loop.create_task(self._restart())
        failed, saved = self.executor.lose(cause, session.settings.launch.loss)
        lost = mention(failed)
        log.error(
            "%s It was process %d and took %s with it%s. %s",
            unhealthy(self.name, cause),
            session.process.pid,
            lost.text,
            f"; {saved} more wait{'s' if saved == 1 else ''} for another process" if saved else "",
            self.backoff.prospect,
            extra=self.output.labels(lost.ids, lost.traces),
        )

    async def _restart(self) -> None:
        """Bring a new process to life, however often it takes.

        Any exception of an attempt counts as its failure: nothing but success, a limit without further attempts, and
        cancellation ends this.
        """
        settings, backoff = self._settings, self.backoff
        assert settings is not None
        given_up = False
        while True:
            failure = await _failure_of(settings.stub.launch.end_leftovers())
            if backoff.is_over:
                if not given_up:
                    log.error(
                        "instance '%s' is given up after %d restarts. %s",
                        self.name,
                        backoff.restarts,
                        self.trouble,
                        extra=self.output.labels(),
                    )
                given_up = True
                self._enter(InstanceState.GIVEN_UP)
                self._loop.call_soon(self._owner.on_available)
                self._loop.call_soon(self._services.on_given_up)
                if not backoff.tries_again:
                    return
            await backoff.wait()
            failure = failure or await _failure_of(self.initialize(settings))
            if failure is None:
                self.restart_count += 1
                self._loop.call_soon(self._owner.on_available)
                log.info("instance '%s' is restarted", self.name, extra=self.output.labels())
                return
            expected = isinstance(failure, (ModelLoadError, OSError))
            log.error(
                "instance '%s' cannot be restarted: %s",
                self.name,
                failure,
                exc_info=None if expected else failure,
                extra=self.output.labels(),
            )
            self._enter(InstanceState.FAILED)
            self._start_failure = str(failure)
            session, self._executions.session = self.session, None
            if session is not None:
                session.kill()  # it said why and ends by itself, unless a thread of the model's keeps it alive
            self._loop.call_soon(self._owner.on_available)


async def _failure_of(part: Awaitable[None]) -> Exception | None:
    try:
        await part
    except Exception as error:  # noqa: BLE001  the instance would be lost without a word
        return error
    return None
