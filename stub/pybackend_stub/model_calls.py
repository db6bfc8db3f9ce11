"""Business Logic Scripting: a model calls other models, and waits, awaits or iterates."""

import weakref
from collections import deque
from contextlib import suppress
from typing import Any, Awaitable, Callable, Deque, List, Optional, Sequence, Union

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse, ResponseIterator
from pybackend_stub.host_calls import HostCalls, MessageTooLong
from pybackend_stub.receiver import Receiver, Waiter
from pybackend_stub.tensor_io import OutputMemoryExhausted, OutputTail, OutputWriter, TensorReader
from pybackend_wire.errors import ErrorCode
from pybackend_wire.host_messages import Reply
from pybackend_wire.messages import Failure, RequestOptions, RequestResult
from pybackend_wire.stub_messages import Call, CancelCall

RECEIVED = (
    "A request that was passed to 'execute' cannot be executed again: build an InferenceRequest with a model_name from its "
    "inputs."
)
"""Error for a model that executes a request it did not build."""

_FAILED = "An error occurred while performing BLS request."


class _Replies:
    """The responses to one call, as they arrive."""

    def __init__(self, receiver: Receiver, reader: TensorReader) -> None:
        self._receiver = receiver
        self._reader = reader
        self._responses: Deque[InferenceResponse] = deque()
        self._finished = False
        self._waiters: List[Waiter] = []
        """At most one waiter. A list, because threads may switch anywhere and list operations lose nothing."""
        self._abandoned = False
        self._iterator: Optional[weakref.ref[ResponseIterator]] = None
        self.on_first: Optional[Callable[[], None]] = None

    def on_reply(self, reply: Reply, tail: bytearray) -> bool:
        """Accept a reply, in the thread that read it."""
        _, final, result = reply
        if result is not None:
            response = self._response(result, tail)
            if not self._abandoned:
                self._responses.append(response)
        elif final and not self._abandoned:
            self._responses.append(InferenceResponse())
        self._finished = final
        while self._waiters:
            self._receiver.finish(self._waiters.pop())
        if self.on_first is not None:
            on_first, self.on_first = self.on_first, None
            on_first()
        return final

    def fail(self, model_name: str, code: ErrorCode, reason: Exception) -> int:
        """Make a reply in the host's place, which never learns of the call; returns a number that no call has."""
        message = f"Model {model_name} - Error when running inference: {reason}"
        self.on_reply(Reply(0, True, RequestResult(Failure(code, message), [], None)), bytearray())
        return 0

    def _response(self, result: Any, tail: bytearray) -> InferenceResponse:
        failure, places, parameters = result
        if failure is not None:
            return InferenceResponse(error=TritonError(failure[1], ErrorCode(failure[0])))
        response = InferenceResponse(self._reader.tensors(places, tail))
        response._parameters = parameters
        return response

    def iterator(self, cancel: "Callable[[], None]") -> ResponseIterator:
        """Return an iterator over the responses. Once the model lets go of it, further responses are dropped."""
        iterator = ResponseIterator._create(self.receive, cancel)
        self._iterator = weakref.ref(iterator, self._abandon)
        return iterator

    def _abandon(self, _reference: Any) -> None:
        self._abandoned = True
        self._responses.clear()

    def receive(self) -> Optional[InferenceResponse]:
        """Wait for the next response; None after the last."""
        while not self._responses:
            if self._finished:
                # Check again: the last response may have come after the first check.
                return self._responses.popleft() if self._responses else None
            waiter = Waiter()
            self._waiters.append(waiter)
            if not (self._responses or self._finished):  # otherwise it came after the first check
                self._receiver.wait(waiter)
        return self._responses.popleft()


class ModelCalls:
    """Runs a model's BLS calls.

    Args:
        execution: returns the execution that the calling thread works for, 0 if that is not known.
        before_call: called before each call, to tell the host what it must know first.
    """

    def __init__(
        self,
        calls: HostCalls,
        receiver: Receiver,
        reader: TensorReader,
        writer: OutputWriter,
        execution: "Callable[[], int]",
        before_call: "Callable[[], None]",
    ) -> None:
        self._calls = calls
        self._receiver = receiver
        self._reader = reader
        self._writer = writer
        self.execution = execution
        self._before_call = before_call

    def infer(self, request: InferenceRequest, decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        """Run a request; only the calling thread waits."""
        return self.infer_for(request, decoupled, self.execution())

    def infer_async(self, request: InferenceRequest, decoupled: bool) -> "Awaitable[Any]":
        """Run a request; returns a future of the running event loop."""
        return self.infer_async_for(request, decoupled, self.execution())

    @property
    def are_open(self) -> bool:
        """Whether the host has calls or questions of this model; what is called now comes after them."""
        return self._calls.are_open

    def infer_for(
        self, request: InferenceRequest, decoupled: bool, execution: int, held: "Sequence[str]" = ()
    ) -> "Union[InferenceResponse, ResponseIterator]":
        """Run a request for an execution; ``held`` are the other instances that wait for it meanwhile."""
        replies = _Replies(self._receiver, self._reader)
        number = self._send(request, decoupled, replies, execution, held)
        if decoupled:
            return self._iterator(number, replies)
        return replies.receive() or InferenceResponse(error=TritonError(_FAILED))

    def infer_async_for(
        self, request: InferenceRequest, decoupled: bool, execution: int, held: "Sequence[str]" = ()
    ) -> "Awaitable[Any]":
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        replies = _Replies(self._receiver, self._reader)
        number = 0

        def resolve() -> None:
            if not future.done():
                future.set_result(self._iterator(number, replies) if decoupled else replies.receive())

        def on_first() -> None:
            self._receiver.expected_came()
            with suppress(RuntimeError):  # if the model has closed its loop
                loop.call_soon_threadsafe(resolve)

        replies.on_first = on_first
        self._receiver.expect()
        try:
            number = self._send(request, decoupled, replies, execution, held)
        except BaseException:
            self._receiver.expected_came()
            raise
        return future

    def _send(
        self, request: InferenceRequest, decoupled: bool, replies: _Replies, execution: int, held: "Sequence[str]"
    ) -> int:
        """Send a CALL and return its number; if a request cannot be sent, its error becomes the reply."""
        target = request._target
        if target is None:
            raise TritonModelException(RECEIVED)
        tail = OutputTail()
        try:
            places = self._writer.write(request._inputs, tail)
        except OutputMemoryExhausted as exhausted:
            return replies.fail(target.model_name, ErrorCode.UNAVAILABLE, exhausted)
        number = self._calls.open(replies.on_reply)
        call = Call(
            number,
            target.model_name,
            target.model_version,
            decoupled,
            execution,
            places,
            list(request._requested_output_names),
            _options(request),
            list(held),
        )
        try:
            self._before_call()
            self._calls.call(call, tail)
        except BaseException as error:
            self._calls.close(number)
            self._writer.free(places)
            if isinstance(error, MessageTooLong):
                return replies.fail(target.model_name, ErrorCode.INVALID_ARG, error)
            raise
        return number

    def _iterator(self, number: int, replies: _Replies) -> ResponseIterator:
        def cancel() -> None:
            self._calls.send(CancelCall(number))

        return replies.iterator(cancel)


def _options(request: InferenceRequest) -> "Optional[RequestOptions]":
    """Return the options of a request; None if it sets none."""
    if not (
        request._request_id
        or request._correlation_id
        or request._flags
        or request._timeout
        or request._parameters
        or request._trace
    ):
        return None
    return RequestOptions(
        request._request_id,
        request._correlation_id,
        request._flags,
        0,
        request._timeout,
        request._parameters,
        0 if request._trace is None else request._trace._number,
    )
