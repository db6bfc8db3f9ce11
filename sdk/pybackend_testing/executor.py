"""Sends requests to a model under test, one call of ``execute`` after another, and waits for its responses.

On a request's path this module sits between the harness's checks and the host's messages.
"""

import contextvars
import queue
import threading
from itertools import count
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from pybackend_stub.host_calls import HostRefusal
from pybackend_testing.configuration import Signature
from pybackend_testing.errors import FinalizeError, HarnessError, NoResponse, PendingFailures, format_error
from pybackend_testing.host import Host
from pybackend_testing.request import Arrival, Exchange
from pybackend_wire.errors import ErrorCode

MOST_TURNS = 10_000
"""Most executions of one request: a model that reschedules for ever must fail its test."""


class Turns:
    """The changes to a request for each of its executions; ``starts`` are values of control tensors that mark no beginning."""

    def __init__(self, starts: "Mapping[str, Any]", *, text_ids: bool) -> None:
        self._starts = dict(starts)
        self._text_ids = text_ids
        self._ids: Iterator[int] = count(1)

    def begin(self, exchange: Exchange) -> None:
        """Prepare the first execution: each request begins a sequence."""
        options = exchange.options
        number = next(self._ids)
        exchange.options = options._replace(
            correlation_id=options.correlation_id or (str(number) if self._text_ids else number),
            flags=options.flags | TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        )

    def go_on(self, exchange: Exchange) -> None:
        """Prepare the next execution; the inputs are as the model has left them."""
        exchange.options = exchange.options._replace(flags=0)
        for tensor in exchange.inputs:
            if tensor.name() in self._starts:
                tensor.as_numpy()[...] = self._starts[tensor.name()]


def turns_of(document: "Mapping[str, Any]") -> "Optional[Turns]":
    """Return the turns of a model's requests; None if its configuration does not allow rescheduling."""
    batching = document.get("sequence_batching", {})
    if not batching.get("iterative_sequence", False):
        return None
    controls: List[Tuple[str, Dict[str, Any]]] = [
        (entry["name"], control) for entry in batching.get("control_input", ()) for control in entry.get("control", ())
    ]
    starts = {name: _false(control) for name, control in controls if control.get("kind") == "CONTROL_SEQUENCE_START"}
    text_ids = any(
        control.get("kind") == "CONTROL_SEQUENCE_CORRID" and control.get("data_type") == "TYPE_STRING"
        for _, control in controls
    )
    return Turns(starts, text_ids=text_ids)


def _false(control: "Mapping[str, Any]") -> Any:
    pairs = (control.get(f"{kind}_false_true") for kind in ("int32", "fp32", "bool"))
    return next((pair[0] for pair in pairs if pair), 0)


_executing: "contextvars.ContextVar[Tuple[ModelExecutor, ...]]" = contextvars.ContextVar(
    "pybackend_sdk_testing_executing", default=()
)
"""The models that wait for the code running here, the outermost first."""

_served: "contextvars.ContextVar[Sequence[Exchange]]" = contextvars.ContextVar(
    "pybackend_sdk_testing_served", default=()
)
"""The requests whose cancellation cancels BLS calls made by the code running here."""


class ModelExecutor:
    """Executes requests on one initialised model, and waits ``wait_s`` where a server would wait for ever.

    Without ``turns`` the model may not reschedule requests. If it ``cancels_calls``, cancelling a request cancels the
    BLS calls that the model makes for it.
    """

    def __init__(
        self,
        host: Host,
        instance_name: str,
        signature: Signature,
        decoupled: bool,
        cancels_calls: bool,
        turns: Optional[Turns],
        wait_s: float,
        failures: PendingFailures,
    ) -> None:
        self.host = host
        self.instance_name = instance_name
        self.signature = signature
        self.decoupled = decoupled
        self.failures = failures
        self._cancels_calls = cancels_calls
        self._turns = turns
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._jobs: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._worker: Optional[threading.Thread] = None

    def is_ready(self) -> Tuple[bool, str]:
        ready = self.host.is_ready()
        self.failures.raise_first()
        return ready

    def finalize(self, *, strict: bool) -> None:
        """Wait for running executions and finalize the model; an error of ``finalize`` is raised if this is strict."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join(self._wait_s)
        if not self._turn.acquire(timeout=self._wait_s):
            where = self._whereabouts()
            raise FinalizeError(f"execute does not return, so that finalize cannot be called: {where}")
        self._turn.release()
        problem, cause = self.host.process.finalize()
        if problem and strict:
            raise FinalizeError(problem) from cause

    def release(self) -> None:
        self.host.calls.close()
        self.host.process.release()

    # Calls of execute

    @property
    def waits_for_caller(self) -> bool:
        """Whether this model is waiting for the code running here, so that it could accept no further request."""
        return self in _executing.get() and self._turn.locked()

    @staticmethod
    def served() -> "Sequence[Exchange]":
        """The requests whose cancellation cancels BLS calls made by the calling code."""
        return _served.get()

    def cycle_refusal(self) -> HostRefusal:
        """Return the error for a call of this model that would wait for itself."""
        names = [executor.signature.model_name for executor in _executing.get()]
        own = self.signature.model_name
        return HostRefusal(
            "the call can never be served, as models wait for each other and no instance is free: "
            f"{' -> '.join([*names[names.index(own) :], own])}. Give one of them more instances (instance_group {{ count: ... }}), "
            "or do without the call",
            ErrorCode.UNAVAILABLE,
        )

    def execute(self, exchanges: "Sequence[Exchange]") -> None:
        """Call ``execute`` in this thread; responses arrive at the exchanges.

        It is called once, and again with the requests that the model reschedules.
        """
        if self.waits_for_caller:
            raise HarnessError(f"instance '{self.instance_name}' is busy with the request that made this call")
        if not self._turn.acquire(timeout=self._wait_s):
            raise HarnessError(f"instance '{self.instance_name}' is busy: {self._whereabouts()}")
        chain = _executing.set((*_executing.get(), self))
        served = _served.set(exchanges if self._cancels_calls else ())
        try:
            self._run(exchanges)
        finally:
            _executing.reset(chain)
            _served.reset(served)
            self._turn.release()

    def _run(self, exchanges: "Sequence[Exchange]") -> None:
        turns = self._turns
        if turns is not None:
            for exchange in exchanges:
                turns.begin(exchange)
        for _ in range(MOST_TURNS):
            again = self.host.run(exchanges)
            # Looked at once: a request may be cancelled at any moment, and must then either go on or get its answer.
            cancelled = [exchange for exchange in again if exchange.cancelled]
            for exchange in cancelled:
                exchange.ended = True
                exchange.fail(TritonError("the client cancelled the request", TritonError.CANCELLED))
            exchanges = [exchange for exchange in again if exchange not in cancelled]
            if not exchanges or turns is None:
                return
            for exchange in exchanges:
                turns.go_on(exchange)
        raise HarnessError(
            f"'{self.instance_name}' has rescheduled a request {MOST_TURNS} times "
            "(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE): in a server this would go on for ever"
        )

    def start(self, exchange: Exchange) -> None:
        """Call ``execute`` in the model's thread for requests whose responses are read later."""
        with self._lock:
            if self._worker is None:
                name = f"{self.instance_name} execute"
                self._worker = threading.Thread(target=self._work, name=name, daemon=True)
                self._worker.start()
        context = contextvars.copy_context()
        self._jobs.put(lambda: context.run(self._execute_job, exchange))

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

    # Responses

    def next_arrival(self, exchange: Exchange, wait_s: float, received: int) -> Arrival:
        """Wait for a response after those received. If none comes, the error says what the model does or forgot."""
        arrival = exchange.receive(wait_s)
        self.failures.raise_first()
        if arrival is not None:
            return arrival
        so_far = "no response" if not received else "1 response" if received == 1 else f"{received} responses"
        head = f"waited {wait_s:g} s for a response of '{self.instance_name}'; {so_far} came before. "
        raise NoResponse(head + self._why_none(exchange))

    def _why_none(self, exchange: Exchange) -> str:
        if not exchange.execution:
            return f"'execute' was not called: {self._whereabouts()}"
        if not exchange.ended and self._turn.locked():
            return f"'execute' has not returned: {self._whereabouts()}"
        if not exchange.ended or self.host.process.runs(exchange.execution):
            return "'execute' has returned a coroutine, which has not ended."
        return (
            "'execute' has returned, and the model still holds the request's response sender: the last call must be "
            "send(..., flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL), even after an error or a cancellation. In a "
            "server the client would wait for ever. (wait_s=... lets the harness wait longer.)"
        )

    def _whereabouts(self) -> str:
        return self.host.process.whereabouts() if self._turn.locked() else "it is idle"
