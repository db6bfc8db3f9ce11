"""The server's part for one model under test: sends it requests, and answers its calls and questions.

On both sides are the messages of :mod:`pybackend_wire`. The model's side is the stub's own code, in the test's process
(:mod:`pybackend_testing.local`) or in a stub process (:mod:`pybackend_testing.remote`).
"""

import contextvars
import sys
import threading
from itertools import accumulate, count
from queue import SimpleQueue
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_stub.host_calls import HostRefusal
from pybackend_testing.errors import InputError
from pybackend_testing.fakes import Replies
from pybackend_testing.model_table import ModelTable
from pybackend_testing.request import Exchange, wire_bytes
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.host_messages import (
    Answer,
    Cancel,
    Detach,
    Execute,
    Flow,
    FreeOutput,
    FromHost,
    Initialize,
    ModelToLoad,
    NoOutput,
    Probe,
    Reply,
)
from pybackend_wire.messages import TAIL, Failure, RequestOptions, RequestResult, SegmentRole
from pybackend_wire.stub_messages import (
    Call,
    CancelCall,
    ChangeMetric,
    DropMetric,
    FromStub,
    HandedBack,
    IsModelReady,
    LoadModel,
    NeedOutput,
    NewFamily,
    NewMetric,
    Readiness,
    ReadMetric,
    Rescheduled,
    Respond,
    Result,
    UnloadModel,
)

_ALIGNMENT = 64
_LEAST_SEGMENT_BYTES = 1 << 20


class ModelProcess:
    """Where a model runs. Loading and initialising raise ``LoadError``, with the reason as a server shows it."""

    is_here = True
    """Whether that is the test's process: then calls of other models run in the thread that makes them."""

    @property
    def model(self) -> Any:
        """The model object, or something that says where it is."""
        raise NotImplementedError

    def load(self, model: ModelToLoad, config_json: Optional[str]) -> "Optional[Dict[str, Any]]":
        """Import the model; returns the configuration that it completed, if one is given."""
        raise NotImplementedError

    def initialize(self, plan: Initialize) -> bool:
        """Initialise the model; returns whether it has ``is_ready``."""
        raise NotImplementedError

    def send(self, message: FromHost) -> None:
        """Send a message that is not about the model's life."""
        raise NotImplementedError

    def execute(self, execution: "Execution", message: Execute) -> None:
        """Run ``execute``; returns when it does, or when the next execution may begin."""
        raise NotImplementedError

    def attach(self, number: int, size: int, role: SegmentRole) -> Any:
        """Share memory with the model; returns a writable buffer."""
        raise NotImplementedError

    def runs(self, execution: int) -> bool:
        """Whether the coroutine of an execution is known not to have ended."""
        return False

    def whereabouts(self) -> str:
        """Describe where the model's code is, while ``execute`` runs."""
        raise NotImplementedError

    def finalize(self) -> Tuple[str, Optional[BaseException]]:
        """Finalize the model; returns what went wrong, ``""`` if nothing did, and the exception if there is one."""
        raise NotImplementedError

    def release(self) -> None:
        """Remove everything of the model."""
        raise NotImplementedError


class Execution:
    """One call of ``execute``; ``done`` is set when the result has come, or the process has ended."""

    def __init__(self, exchanges: "Sequence[Exchange]") -> None:
        self.exchanges = exchanges
        self.requests: List[Any] = []
        self.again: List[Exchange] = []
        self.done = threading.Event()


class TensorMemory:
    """The segments of one model."""

    def __init__(self, process: ModelProcess) -> None:
        self._process = process
        self._segment_numbers = count(1)
        self._outputs: Dict[int, Any] = {}

    def placed(self, tensors: "Sequence[Tensor]") -> "Tuple[int, List[Any], List[Tensor]]":
        """Write tensors to a new segment; returns its number, their places, and tensors that view the memory."""
        chunks = [wire_bytes(tensor) for tensor in tensors]
        ends = list(accumulate(len(chunk) + -len(chunk) % _ALIGNMENT for chunk in chunks))
        segment = next(self._segment_numbers)
        buffer = memoryview(self._process.attach(segment, max([1, *ends]), SegmentRole.INPUT))
        places, views = [], []
        for tensor, chunk, offset in zip(tensors, chunks, [0, *ends]):
            view = buffer[offset : offset + len(chunk)]
            view[:] = chunk
            where = (segment, offset) if chunk else (TAIL, 0)
            places.append((tensor.name(), tensor._datatype, tensor.shape(), *where, len(chunk)))
            views.append(Tensor._from_wire(tensor.name(), tensor._datatype, tensor.shape(), view))
        return segment, places, views

    def tensors(self, places: "Sequence[Any]", tail: bytes) -> "List[Tensor]":
        """Copy tensors that the model has written, and give it its memory back."""
        tensors, blocks = [], []
        for name, datatype, shape, segment, offset, nbytes in places:
            source = tail if segment == TAIL else self._outputs.get(segment, b"")
            data = bytearray(memoryview(source)[offset : offset + nbytes])
            if len(data) != nbytes:
                raise RemoteProtocolError(f"output '{name}' lies outside of the model's memory")
            if segment != TAIL:
                blocks.append((segment, offset))
            tensors.append(Tensor._from_wire(name, datatype, shape, data))
        if blocks:
            self._process.send(FreeOutput(blocks))
        return tensors

    def on_need_output(self, message: NeedOutput, _tail: bytes) -> None:
        number = next(self._segment_numbers)
        size = max(_LEAST_SEGMENT_BYTES, message.nbytes + -message.nbytes % 4096)
        try:
            self._outputs[number] = self._process.attach(number, size, SegmentRole.OUTPUT)
        except (OSError, ValueError, OverflowError) as error:
            self._process.send(NoOutput(str(error)))


class _OpenCall:
    """A model's call of another one; ``wanted`` is set when the calling model waits for the next response."""

    def __init__(self, message: Call) -> None:
        self.message = message
        self.replies: Optional[Replies] = None
        self.cancelled = False
        self.wanted = threading.Event()

    def cancel(self) -> None:
        self.cancelled = True
        self.wanted.set()
        if self.replies is not None:
            self.replies.cancel()


class CallsOfModel:
    """The open calls of one model; ``context`` is that of the code that called ``execute`` last."""

    def __init__(self, process: ModelProcess, memory: TensorMemory, table: ModelTable) -> None:
        self.context = contextvars.copy_context()
        self._process = process
        self._memory = memory
        self._table = table
        self._calls: Dict[int, _OpenCall] = {}

    def demand(self) -> None:
        """Let streams of other models go on: the model waits for something."""
        for call in list(self._calls.values()):
            call.wanted.set()

    def close(self) -> None:
        for call in list(self._calls.values()):
            call.cancel()

    def on_call(self, message: Call, tail: bytes) -> None:
        call = self._calls[message.call] = _OpenCall(message)
        options = RequestOptions(*(message.options or ()))
        request = InferenceRequest(
            options.id,
            options.correlation_id,
            self._memory.tensors(message.inputs, tail),
            message.requested_outputs,
            message.model_name,
            message.model_version,
            options.flags,
            options.timeout_us,
            parameters=options.parameters,
        )
        self.begin(lambda: self._serve(call, request), waits=not message.decoupled)

    def begin(self, work: "Callable[[], None]", *, waits: bool) -> None:
        """Do something for the model: in this thread if that is the model's, which ``waits``, otherwise in another."""
        if self._process.is_here and waits and not _is_in_event_loop():
            work()
            return
        context = contextvars.copy_context() if self._process.is_here else self.context.copy()
        threading.Thread(target=context.run, args=(work,), name="pybackend call", daemon=True).start()

    def _serve(self, call: _OpenCall, request: InferenceRequest) -> None:
        final = False
        while not final:
            try:
                if call.replies is None:
                    call.replies = self._table.call(request, decoupled=call.message.decoupled)
                if call.cancelled:
                    call.replies.cancel()
                response, final = call.replies.receive()
            except BaseException as error:  # noqa: BLE001  the model gets an answer, whatever happens
                response, final = self._refusal(call.message.model_name, error), True
            if not (final or call.message.decoupled):
                call.cancel()
                final = True
            if final:
                self._calls.pop(call.message.call, None)
            self._reply(call.message.call, response, final=final)
            if not final and self._process.is_here:
                call.wanted.wait()
                if not call.cancelled:
                    call.wanted.clear()

    def _refusal(self, name: str, error: BaseException) -> InferenceResponse:
        """Return the response to a call that did not reach its model; errors of the test are kept for it."""
        text, code = str(error), ErrorCode.UNAVAILABLE
        if isinstance(error, HostRefusal):
            code = error.code
        elif isinstance(error, InputError):
            code = ErrorCode.INVALID_ARG
        else:
            self._table.failures.keep(error)
        if not text.startswith(f"Model {name} "):
            text = f"Model {name} - Error when running inference: {text}"
        return InferenceResponse(error=TritonError(text, code))

    def _reply(self, call: int, response: Optional[InferenceResponse], *, final: bool) -> None:
        if response is None:
            self._process.send(Reply(call, final, None))
        elif response.has_error():
            error = response.error()
            assert error is not None
            failure = Failure(int(error.code()), error.message())
            self._process.send(Reply(call, final, RequestResult(failure, [], None)))
        else:
            segment, places, _ = self._memory.placed(response.output_tensors())
            self._process.send(Reply(call, final, RequestResult(None, places, response._parameters)))
            self._process.send(Detach(segment))

    def on_cancel(self, message: CancelCall, _tail: bytes) -> None:
        call = self._calls.get(message.call)
        if call is not None:
            call.cancel()


def _is_in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


_UNLIMITED = 2**53
"""Responses of a stream that may come before the test has read any: it may read them when it likes."""


class Host:
    """One model's counterpart.

    Attributes:
        process: where the model runs; set by :meth:`connect` before anything else is used.
        has_is_ready: whether it can be asked if it is ready; a model without ``is_ready`` is.
        errors: exceptions of a model elsewhere, by the beginning of the clients' error.
    """

    process: ModelProcess
    calls: CallsOfModel

    def __init__(self, table: ModelTable) -> None:
        self._table = table
        self.streams = self.reschedules = self.has_is_ready = False
        self.errors: Dict[str, BaseException] = {}
        self._numbers = count(1)
        self._executions: Dict[int, Execution] = {}
        self._open: Dict[Tuple[int, int], Exchange] = {}
        self._returned: List[int] = []
        self._rescheduled: Dict[int, Sequence[int]] = {}
        self._ended = ""
        self._ready: SimpleQueue[Tuple[bool, str]] = SimpleQueue()
        self._probing = threading.Lock()

    def connect(self, process: ModelProcess) -> None:
        self.process = process
        self._memory = TensorMemory(process)
        self.calls = CallsOfModel(process, self._memory, self._table)
        self._handlers: Dict[type, Callable[[Any, bytes], None]] = {
            Result: self._on_result,
            Respond: self._on_respond,
            Rescheduled: self._on_rescheduled,
            HandedBack: self._on_handed_back,
            NeedOutput: self._memory.on_need_output,
            Call: self.calls.on_call,
            CancelCall: self.calls.on_cancel,
            Readiness: lambda message, _tail: self._ready.put((message.ready, message.reason)),
            **dict.fromkeys((NewFamily, NewMetric, ReadMetric), self._on_question),
            **dict.fromkeys((ChangeMetric, DropMetric), self._on_change),
            **dict.fromkeys((LoadModel, UnloadModel, IsModelReady), self._on_control),
        }

    # Requests

    def run(self, exchanges: "Sequence[Exchange]") -> "List[Exchange]":
        """Execute requests together; returns those to execute again."""
        execution = Execution(exchanges)
        self.calls.context = contextvars.copy_context()
        for exchange in exchanges:
            if exchange.places is None:
                exchange.segment, exchange.places, views = self._memory.placed(exchange.inputs)
                exchange.inputs = views if self.reschedules else []
            execution.requests.append((exchange.places, list(exchange.requested), tuple(exchange.options)))
        self.process.execute(execution, self._begun(execution))
        return execution.again

    def _begun(self, execution: Execution) -> Execute:
        number = next(self._numbers)
        self._executions[number] = execution
        for place, exchange in enumerate(execution.exchanges):
            self._open[number, place] = exchange
            exchange.execution = number
            exchange.on_cancel = self._cancelling(number, place)
            if self.streams:
                self.process.send(Flow(number, place, _UNLIMITED))
            if exchange.cancelled:
                exchange.on_cancel()
        return Execute(number, execution.requests)

    def _cancelling(self, execution: int, place: int) -> "Callable[[], None]":
        return lambda: self.process.send(Cancel(execution, place))

    def is_ready(self) -> Tuple[bool, str]:
        """Ask the model; returns the answer, and the reason if it is False."""
        if self._ended or not self.has_is_ready:
            return not self._ended, self._ended
        with self._probing:
            self.process.send(Probe())
            return self._ready.get()

    def note_failure(self, execution: int, error: BaseException) -> None:
        """Keep the exception that an execution raised, for its results."""
        for (number, _), exchange in list(self._open.items()):
            if number == execution:
                exchange.exception = error

    def end(self, message: str) -> None:
        """Fail what is open: the model's process has ended."""
        self._ended = message
        self._ready.put((False, message))
        for key in list(self._open):
            exchange = self._open.pop(key, None)
            if exchange is not None:
                exchange.fail(TritonError(message))
        for execution in list(self._executions.values()):
            execution.done.set()

    # Messages from the model

    def on_message(self, message: FromStub, tail: bytes) -> None:
        handle = self._handlers.get(type(message))
        if handle is not None:
            handle(message, tail)

    def _on_result(self, message: Result, tail: bytes) -> None:
        execution = self._executions.pop(message.execution)
        again = self._rescheduled.pop(message.execution, ())
        for place, (exchange, result) in enumerate(zip(execution.exchanges, message.results)):
            key = (message.execution, place)
            if place in again:
                self._open.pop(key, None)
                execution.again.append(exchange)
                continue
            exchange.ended = True
            self.process.send(Detach(exchange.segment))
            if result is not None:
                self._open.pop(key, None)
                self._answer(exchange, result, tail, final=True)
        execution.done.set()
        self._send_returned()

    def _on_respond(self, message: Respond, tail: bytes) -> None:
        key = (message.execution, message.request)
        exchange = self._open.pop(key, None) if message.final else self._open.get(key)
        if message.final and self.streams:
            self.process.send(Flow(*key, None))
        if exchange is not None:
            self._answer(exchange, message.result, tail, final=message.final)

    def _answer(self, exchange: Exchange, result: Any, tail: bytes, *, final: bool) -> None:
        if result is None:
            exchange.answer(None, final)
            return
        failure, places, parameters = result
        if failure is not None:
            code, text = failure
            exchange.exception = exchange.exception or self.errors.get(head_of(text))
            exchange.answer(InferenceResponse(error=TritonError(text, ErrorCode(code))), final)
            return
        response = InferenceResponse(self._memory.tensors(places, tail))
        response._parameters = parameters
        exchange.answer(response, final)

    def _on_rescheduled(self, message: Rescheduled, _tail: bytes) -> None:
        self._rescheduled[message.execution] = message.requests

    def _on_handed_back(self, message: HandedBack, _tail: bytes) -> None:
        """The model was busy; its next result shows that it can take them."""
        next(self._numbers)  # the execution with the next number would come back too
        self._returned += message.executions
        if len(self._returned) == len(self._executions):
            self._send_returned()

    def _send_returned(self) -> None:
        returned, self._returned = self._returned, []
        for number in returned:
            execution = self._executions.pop(number)
            self.process.send(self._begun(execution))

    # Questions

    def _on_question(self, message: Any, tail: bytes) -> None:
        failure, value = None, None
        try:
            value = self._value(message, tail)
        except HostRefusal as refused:
            failure = Failure(int(refused.code), refused.message)
        self.process.send(Answer(message.call, failure, value))

    def _on_control(self, message: Any, tail: bytes) -> None:
        self.calls.begin(lambda: self._on_question(message, tail), waits=True)

    def _value(self, message: Any, tail: bytes) -> Any:
        if isinstance(message, NewFamily):
            return self._table.metrics.create_family(message.name, message.metric_kind)
        if isinstance(message, NewMetric):
            return self._table.metrics.create(message.family, message.labels, message.buckets)
        if isinstance(message, ReadMetric):
            return self._table.metrics.read(message.metric)
        if isinstance(message, LoadModel):
            files = {tensor.name(): bytes(tensor._data) for tensor in self._memory.tensors(message.files, tail)}
            return self._table.load(message.model_name, message.config, files)
        if isinstance(message, UnloadModel):
            return self._table.unload(message.model_name)
        return self._table.is_ready(message.model_name, message.model_version)

    def _on_change(self, message: Any, _tail: bytes) -> None:
        """The garbage collector may be sending it: nothing here takes a lock that a model's thread may hold."""
        if isinstance(message, DropMetric):
            self._table.metrics.dropped.append(message.handle)
        else:
            self._table.metrics.change(message.metric, message.change, float(message.value))


def head_of(error_text: str) -> str:
    """Return the part of a client's error before the model's frames."""
    return error_text.partition("\n\nAt:\n")[0].strip()
