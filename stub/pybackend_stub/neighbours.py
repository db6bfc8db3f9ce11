"""Calls between the models of a group, as function calls within their process.

Such a call is made here only if nothing about it is unusual: the host has offered the called model, the request fits
its signature, and the model is free. Every other call goes to the host, which refuses it, lets it wait, or finds that
it can never be served. So there is one place for each rule and for the text of each error.

Small tensors are copied, as the host would do. Large inputs are lent as read-only views. Outputs change hands if the
called model keeps nothing of them, and are copied otherwise.
"""

import inspect
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any, Awaitable, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.execution import Unanswered, check_returned
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse, ResponseIterator
from pybackend_sdk.response_sender import InferenceResponseSender, ResponseStream
from pybackend_sdk.tensor import Tensor
from pybackend_stub.channel import MOST_TEXT, shortened
from pybackend_stub.executor import MUCH_TEXT, ModelExecutor
from pybackend_stub.model_calls import ModelCalls
from pybackend_stub.model_output import EXECUTING, ids_of
from pybackend_stub.results import AnswerQueue, ResultWriter
from pybackend_stub.runtimes import SharedRuntime, enter, leave
from pybackend_stub.tensor_io import TensorReader
from pybackend_wire.bytes_tensor import element_problem
from pybackend_wire.dtypes import BY_NUMPY
from pybackend_wire.host_messages import Initialize
from pybackend_wire.messages import INLINE_BYTES, TAIL, TensorPlace
from pybackend_wire.stub_messages import LocalCall

MOST_LAYOUTS = 64
"""Most layouts of outputs to remember as told to the host, which warns of those that are not as configured."""


_BY_NAME = {row.name: row.numpy for row in BY_NUMPY.values()}


class _Expected(NamedTuple):
    datatype: str
    dims: "Tuple[int, ...]"


class LocalRequest:
    """The key of a request that was made in this process; it makes the sender, if the model wants one.

    Args:
        is_cancelled: for a step of an ensemble, whether nobody waits for it; a call goes on without its caller's
            client.
    """

    def __init__(self, is_cancelled: "Optional[Callable[[], bool]]" = None) -> None:
        self.is_over = False
        self.is_step = is_cancelled is not None
        self.is_cancelled = is_cancelled or (lambda: False)
        self._response: Optional[InferenceResponse] = None
        self._answered: Optional[threading.Event] = None

    def sender(self) -> InferenceResponseSender:
        self._answered = threading.Event()
        return InferenceResponseSender._create(ResponseStream(self._transmit, self.is_cancelled, decoupled=False))

    def _transmit(self, response: "Optional[InferenceResponse]", _final: bool) -> None:
        assert self._answered is not None
        self._response = response
        self._answered.set()

    def take(self) -> "Optional[InferenceResponse]":
        """Wait for what the model sends."""
        assert self._answered is not None
        self._answered.wait()
        response, self._response = self._response, None
        return response


class RunningCall(NamedTuple):
    """A call that is being served in the calling thread, by a model of this process."""

    # the calls of the model at the beginning of all such calls, by which the others reach the host, too
    outermost: ModelCalls
    execution: int  # of that model, 0 if it is not known
    held: "Tuple[str, ...]"  # the instances that serve calls in this thread, the innermost one last
    answers: AnswerQueue
    request: LocalRequest


_FRAME: "ContextVar[Optional[RunningCall]]" = ContextVar("pybackend_frame", default=None)


def _current() -> "Optional[RunningCall]":
    """The frame of the running code; None for what a call has started and has outlived it."""
    frame = _FRAME.get()
    return None if frame is None or frame.request.is_over else frame


class Lent:
    """The large inputs of one call, of which the called model gets views that it cannot write through."""

    __slots__ = ("_counts", "_datas")

    def __init__(self) -> None:
        self._datas: List[Any] = []
        self._counts: List[int] = []

    def lend(self, tensor: Tensor, copies: bool) -> Tensor:
        """A tensor as a neighbour gets it: a view, or a copy if it is small or its model wants copies."""
        name, datatype, shape = tensor._name, tensor._datatype, tensor._shape
        if copies or _size(tensor) <= INLINE_BYTES:
            return tensor_of(name, datatype, shape, _copied(tensor._data))
        self._datas.append(tensor._data)
        self._counts.append(_count(self._datas, -1))
        return _read_only(tensor)

    def has(self, data: Any) -> bool:
        """Whether an array lies in one of them, and so in memory that its model cannot write."""
        return any(lies_in(data, each) for each in self._datas)

    @property
    def are_kept(self) -> bool:
        """Whether more refers to any of them than before the call."""
        datas, counts = self._datas, self._counts
        return any(_count(datas, place) > counts[place] for place in range(len(datas)))


class MemberReader(TensorReader):
    """Reads the requests of a member: large inputs are views that it cannot write through, wherever they come from."""

    def requests(self, execution: int, raw_requests: "Sequence[Any]", tail: bytearray) -> "List[InferenceRequest]":
        requests = super().requests(execution, raw_requests, tail)
        for request in () if self._copy_inputs else requests:
            inputs = request._inputs
            for place, tensor in enumerate(inputs):
                if _size(tensor) > INLINE_BYTES:
                    inputs[place] = _read_only(tensor)
        return requests


class Neighbour:
    """A model that others in this process can call."""

    def __init__(self, name: str, runtime: SharedRuntime) -> None:
        self.name = name
        self.instance_name = runtime.instance_name
        self.runtime = runtime
        self.busy = threading.Lock()  # held while it executes, whichever model has asked
        self._is_offered = False
        self._is_open = False
        self._told: Dict[Any, None] = {}
        self.member = 0
        self.has_run = False  # an execution that the host has sent is over

    def open(self, model: Any, executor: ModelExecutor, results: ResultWriter, plan: Initialize) -> None:
        """The model is initialised, and the host says what requests to it look like."""
        assert plan.signature is not None
        self._model = model
        self._executor = executor
        self._results = results
        self._outputs = tuple(plan.output_names)
        self._known_outputs = frozenset(plan.output_names)
        self.copies_inputs = plan.copy_inputs
        self._max_batch_size, inputs, self.member = plan.signature
        self._inputs = {name: _Expected(datatype, tuple(dims)) for name, datatype, dims, _ in inputs}
        self._required = [name for name, _, _, optional in inputs if not optional]
        self._is_open = True

    def close(self) -> None:
        """The model is about to be finalized; called while it is not busy."""
        self._is_open = False

    @property
    def is_callable(self) -> bool:
        return self._is_open and self._is_offered

    @property
    def can_follow(self) -> bool:
        """Whether it may run as a step of an ensemble, in the thread of the model that was the first.

        Not if it may wait for other requests: they may need that thread, which it would keep.
        """
        return self._is_open and self.has_run and not self.runtime.may_wait

    def offer(self, offered: bool) -> None:
        """The host says whether calls that name no version are this model's."""
        self._is_offered = offered

    def fits(self, request: InferenceRequest) -> int:
        """Return the batch size of a request that this model accepts; 0 if the host must judge it."""
        batched, batch_size = self._max_batch_size > 0, 0
        inputs = request._inputs
        for tensor in inputs:
            shape = tuple(tensor._shape)
            if batched:
                if not shape or (batch_size and shape[0] != batch_size):
                    return 0
                batch_size = shape[0]
                shape = shape[1:]
            if not self._accepts(tensor, shape):
                return 0
        if batched and not 0 < batch_size <= self._max_batch_size:
            return 0
        names = {tensor._name for tensor in inputs}
        if len(names) < len(inputs) or not names.issuperset(self._required):
            return 0
        return (batch_size or 1) if self._known_outputs.issuperset(request._requested_output_names) else 0

    def _accepts(self, tensor: Tensor, shape: "Tuple[int, ...]") -> bool:
        known = self._inputs.get(tensor._name)
        if known is None or tensor._datatype != known.datatype or len(shape) != len(known.dims):
            return False
        if shape != known.dims and not all(wanted in (size, -1) for size, wanted in zip(shape, known.dims)):
            return False
        return tensor._datatype != "BYTES" or _is_whole(tensor)

    def serve(self, request: InferenceRequest, batch_size: int, frame: RunningCall) -> InferenceResponse:
        """Execute a request in the calling thread; the caller has taken :attr:`busy`, which is released."""
        clock = time.monotonic_ns
        began_ns = start_ns = end_ns = clock()
        lent, key, before = Lent(), frame.request, EXECUTING.requests
        of_frame, of_model = _FRAME.set(frame), enter(self.runtime)
        failure: Optional[TritonError] = None
        response: Optional[InferenceResponse] = None
        layouts: List[TensorPlace] = []
        try:
            inner = self._request(request, key, lent)
            start_ns = clock()
            EXECUTING.requests = requests = [inner]
            try:
                returned = self._model.execute(requests)
                if type(returned) is not list and inspect.iscoroutine(returned):
                    returned = self._executor.runner.run(0, returned, ids_of(requests))
                response = check_returned(returned, requests)[0]
                if response is None:
                    response = key.take()
            except BaseException as error:  # noqa: BLE001  as in the executor
                stream = None if inner._sender is None else inner._sender._stream
                answered = stream is not None and not stream.settle()
                text = self._executor._log(error, 0, [inner._request_id])
                if answered:
                    response = key.take()
                else:
                    failure = TritonError(text)
            end_ns = clock()
            EXECUTING.requests = before
            returned = inner = requests = None  # type: ignore[assignment]  # so that only the model may keep anything
            if response is None or response._error is not None:
                response = self._failed(failure if response is None else response._error)
            else:
                box = [response]
                response = None
                names = request._requested_output_names
                # A step may pass an input on: nobody else has that. A caller may write to what it has passed.
                response, layouts = self.received(box, names, lent.has if key.is_step else None)
        finally:
            key.is_over = True
            EXECUTING.requests = before
            leave(of_model)
            _FRAME.reset(of_frame)
            self.busy.release()
        if not key.is_step and lent.are_kept:
            self.copies_inputs = True
            _forbid_writing(request._inputs)
        frame.answers.add_local_call(
            LocalCall(
                self.instance_name,
                began_ns,
                start_ns,
                end_ns,
                clock(),
                batch_size,
                None if response._error is None else int(response._error.code()),
                key.is_step,
                layouts,
            )
        )
        return response

    def _request(self, request: InferenceRequest, key: LocalRequest, lent: Lent) -> InferenceRequest:
        parameters = request._parameters
        return InferenceRequest._from_wire(
            request._request_id,
            request._correlation_id,
            [lent.lend(tensor, self.copies_inputs) for tensor in request._inputs],
            request._requested_output_names or self._outputs,
            request._flags,
            request._timeout,
            None if parameters is None else dict(parameters),
            key,
            request._priority,
        )

    def broken(self, error: BaseException) -> InferenceResponse:
        """The answer to a request that could not be served, for reasons such as a lack of memory."""
        return self._failed(TritonError(self._results.raised(error)))

    def _failed(self, error: "Optional[TritonError]") -> InferenceResponse:
        assert error is not None
        if type(error) is Unanswered:
            self._executor._errors.write(error.message(), TritonModelException(error.message()), 0, [])
        return InferenceResponse(error=TritonError(shortened(error.message(), MOST_TEXT), error.code()))

    def received(
        self, box: "List[InferenceResponse]", names: "Sequence[str]", is_safe: "Optional[Callable[[Any], bool]]" = None
    ) -> "Tuple[InferenceResponse, List[TensorPlace]]":
        """Return what the caller gets of a response, and the outputs of which the host must hear.

        The response comes in a box: no variable of the caller's may refer to it. ``is_safe`` tells of a large array
        whether it lies in memory that nobody writes.
        """
        response = box.pop()
        try:
            outputs = self._results.chosen(response, names or self._outputs)
        except BaseException as failed:  # noqa: BLE001  as in the writer of results
            text = self._results.prefixed(self._results.format_error(failed))
            return InferenceResponse(error=TritonError(text)), []
        parameters = response._parameters
        parts = [(tensor._name, tensor._datatype, tensor._shape) for tensor in outputs]
        datas = [tensor._data for tensor in outputs]
        del response, outputs
        tensors = []
        for place, (name, datatype, shape) in enumerate(parts):
            if not (_is_exclusive(datas, place) or (is_safe is not None and is_safe(datas[place]))):
                datas[place] = _copied(datas[place])
            tensors.append(tensor_of(name, datatype, shape, datas[place]))
        received = InferenceResponse._of(tensors)
        received._parameters = None if parameters is None else dict(parameters)
        return received, self._new_layouts(parts)

    def _new_layouts(self, parts: "Sequence[Any]") -> "List[TensorPlace]":
        layouts: List[TensorPlace] = []
        for name, datatype, shape in parts:
            layout = (name, datatype, *shape)
            if layout not in self._told:
                if len(self._told) >= MOST_LAYOUTS:
                    self._told.clear()
                self._told[layout] = None
                layouts.append(TensorPlace(name, datatype, list(shape), TAIL, 0, 0))
        return layouts


class Neighbours:
    """The models of this process that call each other."""

    def __init__(self) -> None:
        self._by_name: Dict[str, List[Neighbour]] = {}
        self._by_number: Dict[int, Neighbour] = {}
        self._changing = threading.Lock()

    def add(self, neighbour: Neighbour) -> None:
        with self._changing:
            self._by_name[neighbour.name] = [*self._by_name.get(neighbour.name, ()), neighbour]

    def remove(self, neighbour: Neighbour) -> None:
        with self._changing:
            left = [each for each in self._by_name.get(neighbour.name, ()) if each is not neighbour]
            self._by_name[neighbour.name] = left
            if self._by_number.get(neighbour.member) is neighbour:
                del self._by_number[neighbour.member]

    def number(self, neighbour: Neighbour) -> None:
        """Let :meth:`find` find one, which the host has given its number."""
        self._by_number[neighbour.member] = neighbour

    def find(self, member: int) -> "Optional[Neighbour]":
        """The one with a number; None if it is not in this process, or the host has a part in its requests."""
        return self._by_number.get(member)

    def infer(
        self, calls: ModelCalls, answers: AnswerQueue, request: InferenceRequest
    ) -> "Optional[InferenceResponse]":
        """Run a request in this thread; None if it must go to the host."""
        target, frame = request._target, _current()
        if target is None or target.model_version >= 0 or request._timeout:
            return None
        if request._trace is not None and request._trace._number:
            return None
        if (calls if frame is None else frame.outermost).are_open or _has_much_text(request):
            return None
        for neighbour in self._by_name.get(target.model_name, ()):
            if neighbour.is_callable:
                batch_size = neighbour.fits(request)
                if not batch_size or not neighbour.busy.acquire(False):
                    return None
                if not neighbour.is_callable:
                    neighbour.busy.release()
                    return None
                if frame is None:
                    held: Tuple[str, ...] = (neighbour.instance_name,)
                    frame = RunningCall(calls, calls.execution(), held, answers, LocalRequest())
                else:
                    held = (*frame.held, neighbour.instance_name)
                    frame = frame._replace(held=held, request=LocalRequest())
                return neighbour.serve(request, batch_size, frame)
        return None


class NeighbourCalls(ModelCalls):
    """A model's BLS calls where it has neighbours."""

    def __init__(self, neighbours: Neighbours, answers: AnswerQueue, *parts: Any) -> None:
        super().__init__(*parts)
        self._neighbours = neighbours
        self._answers = answers
        self.reaches_neighbours = False

    def infer(self, request: InferenceRequest, decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        if self.reaches_neighbours and not decoupled:
            response = self._neighbours.infer(self, self._answers, request)
            if response is not None:
                return response
        frame = _current()
        if frame is None:
            return super().infer(request, decoupled)
        return frame.outermost.infer_for(request, decoupled, frame.execution, frame.held)

    def infer_async(self, request: InferenceRequest, decoupled: bool) -> "Awaitable[Any]":
        frame = _current()
        if frame is None:
            return super().infer_async(request, decoupled)
        return frame.outermost.infer_async_for(request, decoupled, frame.execution, frame.held)


def _has_much_text(request: InferenceRequest) -> bool:
    """Whether texts of a request are so long that they might not fit into a message to the host."""
    correlation_id, parameters = request._correlation_id, request._parameters
    length = len(request._request_id) + (len(correlation_id) if type(correlation_id) is str else 0)
    if parameters:
        length += sum(len(key) + (len(value) if type(value) is str else 0) for key, value in parameters.items())
    return length > MUCH_TEXT


def _size(tensor: Tensor) -> int:
    data = tensor._data
    return data.nbytes if type(data) is np.ndarray else len(data) if type(data) is bytes else memoryview(data).nbytes


def _is_whole(tensor: Tensor) -> bool:
    """Whether a BYTES tensor has the elements that its shape says; the host says what is wrong with another."""
    count = 1
    for size in tensor._shape:
        count *= size
    checking = element_problem(tensor._data, count, "")
    while True:
        try:
            next(checking)
        except StopIteration as end:
            return not end.value


def _copied(data: Any) -> Any:
    """A private copy of a tensor's bytes; bytes need none."""
    if type(data) is bytes:
        return data
    return data.copy() if type(data) is np.ndarray else bytearray(data)


def tensor_of(name: str, datatype: str, shape: "Sequence[int]", data: Any) -> Tensor:
    """Make a tensor, of whose data it is no copy."""
    tensor = Tensor._from_wire(name, datatype, shape, data)
    if type(data) is np.ndarray and datatype in _BY_NAME:
        tensor._array = data
    return tensor


def _read_only(tensor: Tensor) -> Tensor:
    """A view of a tensor that nobody can write through."""
    lent = Tensor._from_wire(tensor._name, tensor._datatype, tensor._shape, tensor._data, copy=True)
    if type(lent._data) is not bytes:
        lent._data = memoryview(lent._data).toreadonly()
        dtype = _BY_NAME.get(lent._datatype)
        if dtype is not None:
            lent._array = np.frombuffer(lent._data, dtype).reshape(lent._shape)
    return lent


def lies_in(data: Any, whole: Any) -> bool:
    """Whether an array that cannot be written lies in the memory of other data."""
    if type(data) is not np.ndarray or data.flags.writeable or data.nbytes <= INLINE_BYTES:
        return False
    known = whole if type(whole) is np.ndarray else np.frombuffer(whole, np.uint8)
    begin, first = (each.__array_interface__["data"][0] for each in (known, data))
    return bool(begin <= first and first + data.nbytes <= begin + known.nbytes)


def _forbid_writing(tensors: "Sequence[Tensor]") -> None:
    """A neighbour has kept what was lent to it: from now on nobody may change that."""
    for tensor in tensors:
        data = tensor._data
        if _size(tensor) > INLINE_BYTES:
            for array in (tensor._array, data):
                if type(array) is np.ndarray:
                    array.flags.writeable = False
            if type(data) not in {np.ndarray, bytes}:
                tensor._data = memoryview(data).toreadonly()


def _count(datas: "List[Any]", place: int) -> int:
    return sys.getrefcount(datas[place])


_VIEW = np.zeros(2)[1:]

_ALONE, _VIEWED = _count([np.zeros(1)], 0), _count([_VIEW.base], 0)
"""The references to an array that only a list has, and to one that a single view has, too."""


def _is_exclusive(datas: "List[Any]", place: int) -> bool:
    """Whether nobody but the list can reach an array, or what it is a view of, and it is large enough to care."""
    data = datas[place]
    if type(data) is bytes:
        return True
    if type(data) is not np.ndarray or data.nbytes <= INLINE_BYTES or not data.flags.writeable:
        return False
    base = data.base
    del data
    if _count(datas, place) != _ALONE:
        return False
    while base is not None:
        if type(base) is not np.ndarray:
            return False
        chain = [base]
        base = base.base
        if _count(chain, 0) != _VIEWED:
            return False
    return True
