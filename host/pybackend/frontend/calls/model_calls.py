"""BLS calls: a call from a stub becomes a request like any client's, and its responses go back as replies.

A tensor is copied once in each direction: from memory of the stub that sends it into the input memory of the other
model, large ones off the event loop. No stub ever maps another model's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pybackend.engine.admission import Sender
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import AmbiguousModelError, ErrorCode, InferenceError, NotServingError, UnknownModelError
from pybackend.frontend.calls.not_ready import not_ready
from pybackend.frontend.calls.open_bytes import OpenBytes, call_bytes
from pybackend.frontend.calls.other_servers import CallAdmission, OtherServers
from pybackend.frontend.slices import Slices, in_slices
from pybackend.inference.pending import PendingRequest, RunningExecution
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES, Buffer, InputTensor, OutputTensor, copy_bytes
from pybackend.instance.executor import InstanceExecutor
from pybackend.instance.services import CallingStub
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease
from pybackend.loop_turn import loop_turn_of
from pybackend.modelconfig.schema import heeds_timeouts
from pybackend.observability.log_lines import about_model
from pybackend.repository.names import ModelNames
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import INLINE_BYTES, TAIL

log = logging.getLogger(__name__)

MOST_BACKLOG_BYTES = 16 * 1024 * 1024
"""Most bytes, tensors included, that may wait for a stub that does not read; beyond it, its senders are paused."""

MOST_OPEN_CALLS = 10_000
"""Limit per stub. Beyond it, calls are refused."""


class _WrongCallError(InferenceError):
    """The call itself is wrong, whatever the inference would return: its text gets no prefix."""


def _refuse_stream(model_name: str) -> InferenceError:
    return _WrongCallError(
        f"Model {model_name} is using the decoupled. The current BLS request call doesn't support models using the "
        "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
        "decoupled models.'"
    )


_PROTOCOL = "model"

_TAKES_ONE = Sender(_PROTOCOL, is_inner=True, refuse_stream=_refuse_stream)
_TAKES_STREAM = Sender(_PROTOCOL, is_inner=True)


class OpenCall:
    """A call that has not received its final reply."""

    __slots__ = (
        "admission",
        "caller",
        "cancelled",
        "delivering",
        "failure",
        "held",
        "inputs",
        "message",
        "nbytes",
        "paused",
        "pending",
        "responses",
        "waiting_model",
    )

    def __init__(self, caller: CallingStub, message: heard.Call, inputs: list[Buffer]) -> None:
        self.caller = caller  # the stub that waits
        self.message = message  # the call's message
        self.inputs = inputs
        self.admission: CallAdmission | None = None  # the call's admission to the model, once it is open
        self.pending: PendingRequest | None = None  # the call's request, once the engine has accepted it
        self.responses: deque[InferenceResponse] = deque()
        # the error that the caller receives instead of the request's own result
        self.failure: InferenceError | None = None
        self.cancelled = False
        self.delivering = False
        self.paused = False
        self.held: list[InstanceExecutor] = []  # instances in the caller's process that wait for it, too
        self.waiting_model = caller.model_name  # the model whose code has made the call
        self.nbytes = 0  # the call's size as counted by :class:`~pybackend.frontend.calls.open_bytes.OpenBytes`

    def hold(self) -> None:
        """Note that instances in the caller's process wait for the call, too: they serve its execution."""
        message, caller = self.message, self.caller
        for name in message.held:
            stub = caller.neighbours.get(name)
            if stub is not None:
                self.waiting_model = stub.model_name
                self.held.append(stub.instance.executor)
                stub.instance.executor.holders.append(self._execution)

    @property
    def _execution(self) -> RunningExecution:
        executor: InstanceExecutor = self.caller.instance.executor
        return RunningExecution(executor, self.message.execution, self.caller)

    def let_go_of_held(self) -> None:
        """The call is answered: those instances go on."""
        held, self.held = self.held, []
        for executor in held:
            executor.holders.remove(self._execution)

    @property
    def could_stay(self) -> bool:
        """Whether the call itself would allow that it stays in a process; calls that wait beside others never do."""
        message = self.message
        return (
            message.options is None
            and message.model_version < 0
            and not message.decoupled
            and self.admission is not None
        )

    def cancel(self) -> None:
        """The caller no longer wants responses."""
        self.cancelled = True
        if self.pending is not None:
            self.pending.cancel()

    def check(self) -> None:
        """Raise the call's failure, or that it was cancelled."""
        if self.failure is not None:
            raise self.failure.again()
        if self.cancelled:
            raise InferenceError("the call was cancelled", ErrorCode.CANCELLED)

    def let_go(self) -> None:
        """Return the caller's memory to the stub once it has been read."""
        self.inputs = []
        self.caller.let_go(self.message.inputs)

    def resume(self) -> None:
        """The caller has read what waited for it."""
        self.paused = False
        if self.pending is not None:
            self.pending.resume()


class _Outbox:
    """The calls of one caller."""

    def __init__(self) -> None:
        self.open: dict[int, OpenCall] = {}
        self.unsent: deque[OpenCall] = deque()
        """Calls that wait until earlier calls have been sent, which preserves their order."""
        self.sending: asyncio.Task[None] | None = None


class CallsFromModels:
    """Passes stubs' calls to the engine.

    ``on_queued`` gets the calls of each turn after the schedulers have had a chance to dispatch them. ``made`` counts
    calls that could be function calls, by the full names of both models. ``others``: the way to models that this server
    has not.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        names: ModelNames,
        open_bytes: OpenBytes,
        on_queued: Callable[[Sequence[OpenCall]], None],
        made: Counter[tuple[str, str]],
        others: OtherServers | None = None,
    ) -> None:
        self._engine = engine
        self._others = others
        self._names = names
        self._answers = engine.answers[_PROTOCOL]
        self._open_bytes = open_bytes
        self._on_queued = on_queued
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._turn = loop_turn_of(self._loop)
        self._outboxes: dict[CallingStub, _Outbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slices = Slices()
        self._queued: list[OpenCall] = []  # in this turn
        self._told_of_timeouts: set[str] = set()  # models that set time-outs without effect

    def count(self, code: int | None) -> None:
        """Count the answer to a call: an error of this code, or a result."""
        self._answers.add("OK" if code is None else ErrorCode(code).name)

    def open_calls(self, caller: CallingStub) -> Sequence[OpenCall]:
        outbox = self._outboxes.get(caller)
        return () if outbox is None else tuple(outbox.open.values())

    def all_open_calls(self) -> Sequence[OpenCall]:
        return [call for outbox in self._outboxes.values() for call in outbox.open.values()]

    def on_call(self, caller: CallingStub, message: heard.Call, tail: bytes) -> None:
        """Accept a call. Raises RemoteProtocolError: the stub violated the protocol."""
        outbox = self._outboxes.get(caller)
        if outbox is None:
            outbox = self._outboxes[caller] = _Outbox()
        if message.call in outbox.open:
            raise RemoteProtocolError(f"call {message.call} is open already")
        call = OpenCall(caller, message, [caller.outputs.read_tensor(place, tail) for place in message.inputs])
        nbytes = call_bytes(message)
        try:
            if len(outbox.open) >= MOST_OPEN_CALLS:
                raise InferenceError(
                    f"instance '{caller.instance_name}' has {MOST_OPEN_CALLS} open calls, and no more can be: wait for answers "
                    "before sending more",
                    ErrorCode.UNAVAILABLE,
                )
            self._open_bytes.acquire(caller, nbytes)
        except InferenceError as error:
            self._refuse(call, error)
            return
        call.nbytes = nbytes
        if message.held and message.execution:
            call.hold()
        if message.execution:
            caller.instance.executor.prefetch.on_call(message.execution)
        outbox.open[message.call] = call
        outbox.unsent.append(call)
        if outbox.sending is None:
            self._send_next(outbox)

    def on_cancel_call(self, caller: CallingStub, number: int) -> None:
        """The model wants no more responses to a call."""
        outbox = self._outboxes.get(caller)
        call = None if outbox is None else outbox.open.get(number)
        if call is not None:
            call.cancel()

    def on_cancelled(self, caller: CallingStub, execution: int) -> None:
        """Nobody waits for an execution any more: cancel its calls too."""
        _cancel(self._slices, [call for call in self.open_calls(caller) if call.message.execution == execution])

    def on_gone(self, caller: CallingStub) -> None:
        """The stub is gone: drop everything it waits for."""
        outbox = self._outboxes.pop(caller, None)
        if outbox is not None:
            outbox.unsent.clear()
            _cancel(self._slices, [*outbox.open.values()])

    # Towards the engine

    def _send_next(self, outbox: _Outbox) -> None:
        """Send calls until one needs time; that one sends the rest when it is done."""
        while outbox.unsent:
            call = outbox.unsent.popleft()
            try:
                admission = call.admission = self._open(call.caller, call.message)
                if _needs_time(admission, call.message):
                    outbox.sending = self._keep(self._send_slowly(outbox, call, admission))
                    return
                if call.failure is not None or call.cancelled:
                    call.check()
                inputs: list[InputTensor] = []
                for place, data in zip(call.message.inputs, call.inputs, strict=True):
                    if place.nbytes <= INLINE_BYTES:
                        inputs.append(InputTensor(place.name, place.datatype, place.shape, bytes(data)))
                        continue
                    tensor = _input(admission, place)
                    inputs.append(tensor)
                    if tensor.lease is None:
                        tensor.data = bytes(data)
                    else:
                        tensor.lease.view[:] = data
                self._submit(call, admission, inputs)
            except InferenceError as error:
                self._refuse(call, error)

    async def _send_slowly(self, outbox: _Outbox, call: OpenCall, admission: CallAdmission) -> None:
        inputs: list[InputTensor] = []
        try:
            call.check()
            if admission.has_is_ready and not await admission.is_ready():
                raise not_ready(admission.model_name)
            for place, data in zip(call.message.inputs, call.inputs, strict=True):
                tensor = _input(admission, place)
                inputs.append(tensor)
                if tensor.lease is None:
                    tensor.data = bytes(data)
                else:
                    await copy_bytes(tensor.lease.view, data)
            call.check()
            self._submit(call, admission, inputs)
        except InferenceError as error:
            self._refuse(call, error)
        finally:
            outbox.sending = None
            self._send_next(outbox)

    def _open(self, caller: CallingStub, message: heard.Call) -> CallAdmission:
        version = "" if message.model_version < 0 else str(message.model_version)
        name = message.model_name
        if self._others is not None and self._others.has(name):
            return self._others.admission(name, version, streams=message.decoupled)
        if caller.namespace:
            name = self._names.known(name, caller.namespace)
        try:
            return self._engine.open(name, version, _TAKES_STREAM if message.decoupled else _TAKES_ONE)
        except AmbiguousModelError:
            raise
        except (UnknownModelError, NotServingError) as error:
            raise not_ready(message.model_name, error) from None

    def _submit(self, call: OpenCall, admission: CallAdmission, inputs: list[InputTensor]) -> None:
        message = call.message
        request = InferenceRequest(
            admission.model_name,
            admission.model_version,
            inputs=inputs,
            requested_outputs=tuple(dict.fromkeys(message.requested_outputs)),
        )
        options = message.options
        if options is not None:
            request.id, request.correlation_id, request.flags = options.id, options.correlation_id, options.flags
            request.timeout_us, request.parameters = options.timeout_us, options.parameters
            told, caller = self._told_of_timeouts, call.caller.model_name
            if options.timeout_us and caller not in told and _lacks_timeouts(admission):
                told.add(caller)
                _tell_of_timeout(caller, admission.full_name)
            outer = call.caller.find_trace(options.trace) if options.trace else None
            if outer is not None:
                request.trace = outer.child(of_execution=True)
        if self._others is not None:
            executor = call.caller.instance.executor
            request.parameters = self._others.parameters(request, executor, message.execution, call.caller.model_name)
        if len(inputs) > 1 and len({tensor.name for tensor in inputs}) != len(inputs):
            raise InferenceError(f"an input is given twice for model '{admission.model_name}'", ErrorCode.INVALID_ARG)
        try:
            call.pending = admission.submit(request, lambda response: self._on_response(call, response))
        except NotServingError as error:
            raise not_ready(message.model_name, error) from None
        call.let_go()
        if message.execution:
            if not self._queued:  # deferred twice: the schedulers of all calls of this turn come first
                self._turn.soon(partial(self._turn.soon, self._tell_queued))
            self._queued.append(call)

    def _tell_queued(self) -> None:
        queued, self._queued = self._queued, []
        self._on_queued(queued)

    def _refuse(self, call: OpenCall, error: InferenceError) -> None:
        self._engine.refusals.add_error(_PROTOCOL, call.message.model_name, error, call.caller.instance_name)
        if call.admission is not None:
            call.admission.release()
        call.let_go()
        if not isinstance(error, _WrongCallError):
            message = f"Model {call.message.model_name} - Error when running inference: {error.message}"
            error = InferenceError(message, error.code)
        self._reply(call, _failed(error), final=True)

    # Back to the caller

    def _on_response(self, call: OpenCall, response: InferenceResponse) -> None:
        call.responses.append(response)
        if not call.delivering:
            self._deliver(call)

    def _deliver(self, call: OpenCall) -> None:
        """Pass on responses until one needs time; that one passes on the rest when it is done."""
        while call.responses:
            response = call.responses.popleft()
            for output in response.outputs:
                if len(output.data) >= LARGE_COPY_BYTES and call.caller.is_open:
                    call.delivering = True
                    _ = self._keep(self._deliver_slowly(call, response))
                    return
            self._pass_on(call, response, [None] * len(response.outputs))

    async def _deliver_slowly(self, call: OpenCall, response: InferenceResponse) -> None:
        leases: list[ArenaLease | None] = []
        try:
            for output in response.outputs:
                leases.append(None if len(output.data) <= INLINE_BYTES else call.caller.lease(len(output.data)))
                if leases[-1] is not None:
                    await copy_bytes(leases[-1].view, output.data)
            self._pass_on(call, response, leases)
        except InferenceError as error:
            _release(call.caller, leases)
            response.release()
            self._reply(call, _failed(error), final=response.final)
        finally:
            call.delivering = False
            self._deliver(call)

    def _pass_on(self, call: OpenCall, response: InferenceResponse, leases: list[ArenaLease | None]) -> None:
        """Send a response to the caller; large outputs have been copied to ``leases``."""
        caller, final = call.caller, response.final
        error = response.error
        if final and call.failure is not None:
            error = call.failure
        if error is not None or not caller.is_open:
            _release(caller, leases)
            response.release()
            self._reply(call, _failed(error or InferenceError("the caller is gone")), final=final)
            return
        try:
            places = _give(caller, response.outputs, leases)
        except (InferenceError, OSError) as failed:
            _release(caller, leases)
            response.release()
            reason = failed.message if isinstance(failed, InferenceError) else str(failed.strerror)
            self._reply(call, _failed(InferenceError(reason, ErrorCode.UNAVAILABLE)), final=final)
            return
        result = None if response.empty else (None, places, response.parameters)
        response.release()
        self._reply(call, result, final=final)

    def _reply(self, call: OpenCall, result: tuple[Any, ...] | None, *, final: bool) -> None:
        caller = call.caller
        if final and call.message.execution:  # first: what it sends ahead leaves in the same frame
            caller.instance.executor.prefetch.on_reply(call.message.execution)
        caller.reply(call.message.call, final=final, result=result)
        if final:
            error = result[0] if result is not None else None
            self.count(None if error is None else error[0])
            call.pending = None  # it has a reference to the call
            call.let_go_of_held()
            outbox = self._outboxes.get(caller)
            if outbox is not None:
                if call.could_stay and len(outbox.open) == 1:
                    self._made[caller.model_name, call.admission.full_name] += 1  # type: ignore[union-attr]  # it is there
                outbox.open.pop(call.message.call, None)
                self._open_bytes.release(caller, call.nbytes)
        elif caller.backlog_bytes > MOST_BACKLOG_BYTES and not call.paused and call.pending is not None:
            call.paused = True
            call.pending.pause()
            caller.on_drained(call.resume)

    def _keep(self, work: Any) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_CANCELLED_AT_ONCE = 100
"""Calls that are cancelled in a slice: with what follows, about as many milliseconds as one connection has of a turn.
"""


def _cancel(slices: Slices, calls: Sequence[OpenCall]) -> None:
    """Cancel calls, the first ones now, and all of them in slices: a model may have thousands."""
    step = in_slices(call.cancel for call in calls)
    if step():
        slices.add(step)


def _failed(error: InferenceError) -> tuple[Any, ...]:
    """The result of a call that has failed."""
    return (int(error.code), error.message), (), None


def _lacks_timeouts(admission: CallAdmission) -> bool:
    """True if no model that may serve a call heeds its time-out."""
    return bool(admission.runs_in) and not any(heeds_timeouts(model.config) for model in admission.runs_in)


def _tell_of_timeout(caller: str, called: str) -> None:
    log.warning(
        "model '%s' calls '%s' with a timeout, which has no effect: it limits how long a call waits in the queue of the called "
        "model, and that lets no request set a limit. In the configuration of '%s': dynamic_batching { default_queue_policy { "
        "default_timeout_microseconds: 60000000 allow_timeout_override: true } }. The log says this once",
        caller,
        called,
        called,
        extra=about_model(caller, ""),
    )


def _needs_time(admission: CallAdmission, message: heard.Call) -> bool:
    """Whether the model must be asked first, or a large tensor be copied."""
    if admission.has_is_ready:
        return True
    for place in message.inputs:  # noqa: SIM110  once per call
        if place.nbytes >= LARGE_COPY_BYTES:
            return True
    return False


def _input(admission: CallAdmission, place: heard.TensorPlace) -> InputTensor:
    """An input without its bytes, and model memory for it unless it is small."""
    tensor = InputTensor(place.name, place.datatype, place.shape)
    tensor.lease = admission.allocate(place.nbytes, place.name)
    if tensor.lease is not None:
        tensor.data = tensor.lease.view
    return tensor


def _give(
    caller: CallingStub, outputs: Sequence[OutputTensor], leases: list[ArenaLease | None]
) -> list[tuple[Any, ...]]:
    """Put outputs where the caller can read them, and return their places. Missing ``leases`` are added."""
    places = []
    for index, output in enumerate(outputs):
        nbytes, lease = len(output.data), leases[index]
        if nbytes <= INLINE_BYTES:
            segment, offset = TAIL, caller.place_inline(bytes(output.data), nbytes)
        else:
            if lease is None:
                leases[index] = lease = caller.lease(nbytes)
                lease.view[:] = output.data
            caller.inputs.lend(lease)
            segment, offset = lease.segment, lease.offset
        places.append((output.name, output.datatype, output.shape, segment, offset, nbytes))
    return places


def _release(caller: CallingStub, leases: Sequence[ArenaLease | None]) -> None:
    """Release memory that the caller was never told about."""
    for lease in leases:
        if lease is not None:
            caller.inputs.take_back(lease)
            lease.release()
