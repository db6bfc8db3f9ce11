"""Runs ``execute`` of a model under test, and waits for its responses.

On a request's path this module sits between the harness's checks and the model's code. The rules for return values of
``execute`` and for response senders are those of the stub: both use :mod:`pybackend_sdk.execution` and
:mod:`pybackend_sdk.response_stream`.
"""

import contextvars
import inspect
import queue
import sys
import threading
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.execution import (
    check_decoupled,
    check_returned,
    log_rescheduling,
    release_streams,
    rescheduled,
)
from pybackend_sdk.logger import Logger
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response_stream import ResponseStream
from pybackend_sdk.testing.attribution import entered
from pybackend_sdk.testing.coroutines import CoroutineRunner, Outcome
from pybackend_sdk.testing.errors import HarnessError, NoResponse
from pybackend_sdk.testing.exchange import Arrival, Exchange
from pybackend_sdk.testing.failures import PendingFailures, contained, format_error
from pybackend_sdk.testing.outputs import output_problems
from pybackend_sdk.testing.runtime import HarnessRuntime
from pybackend_sdk.testing.signature import Signature
from pybackend_sdk.testing.turns import MOST_TURNS, Turns

_executing: "contextvars.ContextVar[Tuple[ModelExecutor, ...]]" = contextvars.ContextVar(
    "pybackend_sdk_testing_executing", default=()
)
"""The models that wait for the code running here, the outermost first."""

_served: "contextvars.ContextVar[Sequence[Exchange]]" = contextvars.ContextVar(
    "pybackend_sdk_testing_served", default=()
)
"""The requests whose cancellation cancels BLS calls made by the code running here."""


class ExecutionOptions(NamedTuple):
    """The settings for executions in a configuration.

    Attributes:
        decoupled: the model sends any number of responses per request.
        concurrency: how many executions of an ``async def execute`` may overlap if each answers once.
        cancels_calls: cancelling a request cancels the BLS calls that the model makes for it.
        turns: the turns of rescheduled requests; None if the model may not reschedule.
    """

    decoupled: bool
    concurrency: int
    cancels_calls: bool
    turns: Optional[Turns]


class ModelExecutor:
    """Executes requests on one model object, one call after another.

    Args:
        runtime: serves the model's ``pb_utils`` calls.
        model: the object.
        signature: its inputs and outputs.
        options: how it answers.
        wait_s: how long to wait for the model where a server would wait for ever.
        failures: collects exceptions that must reach the test.
    """

    def __init__(
        self,
        runtime: HarnessRuntime,
        model: Any,
        signature: Signature,
        options: ExecutionOptions,
        wait_s: float,
        failures: PendingFailures,
    ) -> None:
        self.runtime = runtime
        self.signature = signature
        self.decoupled = options.decoupled
        self.failures = failures
        self._model = model
        self._options = options
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._jobs: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._worker: Optional[threading.Thread] = None
        self._thread_ident = 0
        self._runner: Optional[CoroutineRunner] = None

    @property
    def runner(self) -> CoroutineRunner:
        """The event loop of the model's coroutines."""
        with self._lock:
            if self._runner is None:
                self._runner = CoroutineRunner(f"{self.runtime.instance_name} coroutines")
            return self._runner

    def drain(self) -> Optional[str]:
        """Wait for queued and running executions; returns a message about the current one if that does not end."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join(self._wait_s)
        if not self._turn.acquire(timeout=self._wait_s):
            return f"execute does not return, so that finalize cannot be called: {self.whereabouts()}"
        self._turn.release()
        return None

    def close(self) -> None:
        """Cancel the model's coroutines and end their event loop."""
        if self._runner is not None:
            self._runner.close(self._wait_s)

    # Calls of execute

    @property
    def waits_for_caller(self) -> bool:
        """Whether this model is waiting for the code running here, so that it could accept no further request."""
        return self in _executing.get() and self._turn.locked()

    @staticmethod
    def served() -> "Sequence[Exchange]":
        """The requests whose cancellation cancels BLS calls made by the calling code."""
        return _served.get()

    def cycle(self) -> List[str]:
        """The models that would wait for each other if this one were called again."""
        names = [executor.signature.model_name for executor in _executing.get()]
        own = self.signature.model_name
        return [*names[names.index(own) :], own]

    def execute(self, exchanges: "Sequence[Exchange]") -> None:
        """Call ``execute`` in this thread; responses arrive at the exchanges.

        It is called once, and again with the requests that the model reschedules.

        Raises:
            HarnessError: the model is busy and stays so, or reschedules requests without end.
        """
        if self.waits_for_caller:
            raise HarnessError(f"instance '{self.runtime.instance_name}' is busy with the request that made this call")
        if not self._turn.acquire(timeout=self._wait_s):
            raise HarnessError(f"instance '{self.runtime.instance_name}' is busy: {self.whereabouts()}")
        self._thread_ident = threading.get_ident()
        chain = _executing.set((*_executing.get(), self))
        served = _served.set(exchanges if self._options.cancels_calls else ())
        try:
            with entered(self.runtime):
                self._run(exchanges)
        finally:
            _executing.reset(chain)
            _served.reset(served)
            self._turn.release()

    def _run(self, exchanges: "Sequence[Exchange]") -> None:
        run = self._run_decoupled if self.decoupled else self._run_once
        if self._options.turns is not None:
            for exchange in exchanges:
                self._options.turns.begin(exchange)
        for _ in range(MOST_TURNS):
            for exchange in exchanges:
                exchange.began = True
            again = run(exchanges)
            # Looked at once: a request may be cancelled at any moment, and must then either go on or get its answer.
            cancelled = [exchange for exchange in again if exchange.cancelled]
            for exchange in cancelled:
                exchange.ended = True
                exchange.fail(TritonError("the client cancelled the request", TritonError.CANCELLED))
            exchanges = [exchange for exchange in again if exchange not in cancelled]
            if not exchanges:
                return
        raise HarnessError(
            f"'{self.runtime.instance_name}' has rescheduled a request {MOST_TURNS} times "
            "(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE): in a server this would go on for ever"
        )

    def start(self, exchange: Exchange) -> None:
        """Call ``execute`` in the model's thread for requests whose responses are read later."""
        with self._lock:
            self._start_worker()
        context = contextvars.copy_context()
        self._jobs.put(lambda: context.run(self._execute_job, exchange))

    def _start_worker(self) -> None:
        if self._worker is None:
            name = f"{self.runtime.instance_name} execute"
            self._worker = threading.Thread(target=self._work, name=name, daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            del job  # and with it the request, which the model may have let go of

    def _execute_job(self, exchange: Exchange) -> None:
        try:
            self.execute([exchange])
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            self.failures.keep(error)
            exchange.fail(TritonError(format_error(error)), error)

    # Models that answer each request once

    def _run_once(self, exchanges: "Sequence[Exchange]") -> "List[Exchange]":
        """Return the exchanges to execute again."""
        requests = [self._request(exchange) for exchange in exchanges]

        def on_done(outcome: Outcome) -> None:
            self._finish(requests, exchanges, outcome)

        try:
            returned = self._model.execute(requests)
            if inspect.iscoroutine(returned):
                if self._options.concurrency > 1 and self._options.turns is None:
                    self.runner.start(returned, on_done)
                    return []
                returned = self.runner.run(returned)
        except BaseException as error:  # noqa: BLE001  see contained()
            return self._finish(requests, exchanges, (None, error))
        return self._finish(requests, exchanges, (returned, None))

    def _finish(
        self, requests: "Sequence[InferenceRequest]", exchanges: "Sequence[Exchange]", outcome: Outcome
    ) -> "List[Exchange]":
        returned, error = outcome
        again: List[Exchange] = []
        try:
            if error is not None:
                raise error
            responses = check_returned(returned, requests, self._options.turns is not None)
        except BaseException as failed:  # noqa: BLE001  see contained()
            text = self.raised(failed)
            for request, exchange in zip(requests, exchanges):
                stream = None if request._sender is None else request._sender._stream
                if stream is None or stream.settle():
                    exchange.fail(TritonError(text), failed)
            self._pass_on(failed)
        else:
            for response, exchange in zip(responses, exchanges):
                if response is not None:
                    self._transmit(exchange, response, True)
            again = self._again(requests, exchanges, responses)
        for exchange in exchanges:
            exchange.ended = exchange not in again
        return again

    def _again(
        self, requests: "Sequence[InferenceRequest]", exchanges: "Sequence[Exchange]", responses: "Sequence[Any]"
    ) -> "List[Exchange]":
        """Return the exchanges that the model reschedules, ready for their next execution."""
        turns = self._options.turns
        if turns is None:
            return []
        places = rescheduled(requests, responses)
        for place in places:
            turns.go_on(exchanges[place], requests[place])
        return [exchanges[place] for place in places]

    # Models that answer any number of times

    def _run_decoupled(self, exchanges: "Sequence[Exchange]") -> "List[Exchange]":
        """Return the exchanges to execute again."""
        requests = [self._request(exchange) for exchange in exchanges]
        # Made now, so that a request that the model simply drops is answered too.
        streams = [request.get_response_sender()._stream for request in requests]
        again: List[Exchange] = []
        try:
            returned = self._model.execute(requests)
            if inspect.iscoroutine(returned):
                if self._options.turns is None:
                    self._begin(returned, exchanges, streams)
                    return again
                returned = self.runner.run(returned)
            check_decoupled(returned, self.runtime.instance_name)
            if self._options.turns is None:
                log_rescheduling(requests)
            else:
                release_streams(requests)
            again = self._again(requests, exchanges, [None] * len(requests))
        except BaseException as error:  # noqa: BLE001  see contained()
            self._fail(exchanges, streams, error)
        for exchange in exchanges:
            exchange.ended = exchange not in again
        return again

    def _begin(
        self, coroutine: Any, exchanges: "Sequence[Exchange]", streams: "Sequence[Optional[ResponseStream]]"
    ) -> None:
        def on_done(outcome: Outcome) -> None:
            returned, error = outcome
            try:
                if error is not None:
                    raise error
                check_decoupled(returned, self.runtime.instance_name)
            except BaseException as failed:  # noqa: BLE001  see contained()
                self.runtime.say(Logger.ERROR, self.raised(failed))
                self._fail(exchanges, streams, failed)
            for exchange in exchanges:
                exchange.ended = True

        self.runner.start(coroutine, on_done)

    def _fail(
        self,
        exchanges: "Sequence[Exchange]",
        streams: "Sequence[Optional[ResponseStream]]",
        error: BaseException,
    ) -> None:
        text = self.raised(error)
        for exchange, stream in zip(exchanges, streams):
            exchange.exception = error
            if stream is not None:
                stream.fail(TritonError(text))
        self._pass_on(error)

    # Requests and responses

    def _request(self, exchange: Exchange) -> InferenceRequest:
        options = exchange.options
        return InferenceRequest._from_wire(
            options.request_id,
            options.correlation_id,
            exchange.take_inputs(),
            exchange.requested,
            options.flags,
            options.timeout_us,
            options.parameters,
            exchange,
            options.priority,
        )

    def new_stream(self, exchange: Exchange) -> ResponseStream:
        """Return the response stream of a request that was passed to ``execute``."""

        def transmit(response: Any, final: bool) -> None:
            self._transmit(exchange, response, final)

        return ResponseStream(transmit, lambda: exchange.cancelled, self.decoupled)

    def _transmit(self, exchange: Exchange, response: Any, final: bool) -> None:
        try:
            exchange.transmit(response, final)
        except Exception as error:  # noqa: BLE001  a tensor whose bytes cannot be had is this request's error alone
            exchange.fail(TritonError(self.raised(error)), error)

    def raised(self, error: BaseException) -> str:
        """The error text for requests whose ``execute`` raised or broke the rules."""
        return (
            f"Failed to process the request(s) for model '{self.runtime.instance_name}', message: {format_error(error)}"
        )

    def output_problems(self, exchange: Exchange, arrival: Arrival, *, complete: bool) -> List[str]:
        """Describe how a response differs from the configuration."""
        assert arrival.response is not None
        return output_problems(
            self.signature,
            arrival.response.output_tensors(),
            arrival.dropped,
            exchange.requested if complete else (),
            exchange.batch_size,
        )

    def next_arrival(self, exchange: Exchange, wait_s: float, received: int) -> Arrival:
        """Wait for a response.

        Args:
            exchange: the request.
            wait_s: how long to wait.
            received: number of responses before this one, for the message.

        Raises:
            NoResponse: none arrived; the message says what the model is doing or what it forgot.
        """
        arrival = exchange.receive(wait_s)
        self.failures.raise_first()
        if arrival is not None:
            return arrival
        so_far = "no response" if not received else "1 response" if received == 1 else f"{received} responses"
        head = f"waited {wait_s:g} s for a response of '{self.runtime.instance_name}'; {so_far} came before. "
        raise self._no_response(exchange, head)

    def _no_response(self, exchange: Exchange, head: str) -> NoResponse:
        """The error for a response that does not come."""
        if not exchange.began:
            return NoResponse(f"{head}'execute' was not called: {self.whereabouts()}")
        if not exchange.ended and not self._turn.locked():
            return NoResponse(f"{head}'execute' has returned a coroutine, which has not ended.")
        if not exchange.ended:
            return NoResponse(f"{head}'execute' has not returned: {self.whereabouts()}")
        return NoResponse(
            f"{head}'execute' has returned, and the model still holds the request's response sender: the last call must be "
            "send(..., flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL), even after an error or a cancellation. In a "
            "server the client would wait for ever. (wait_s=... lets the harness wait longer.)"
        )

    def whereabouts(self) -> str:
        """Describe where the model's code is now."""
        frame = sys._current_frames().get(self._thread_ident) if self._turn.locked() else None
        while frame is not None:
            if self.runtime.modules.has(frame.f_code.co_filename):
                code = frame.f_code
                return f"it is at {code.co_filename}({frame.f_lineno}): {code.co_name}"
            frame = frame.f_back
        return "another request is still being executed" if self._turn.locked() else "it is idle"

    def _pass_on(self, error: BaseException) -> None:
        if not contained(error):
            self.failures.keep(error)
