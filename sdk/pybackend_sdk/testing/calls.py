"""A model's calls of other models, on the side of the models that answer."""

import contextvars
import sys
import threading
from typing import Callable, Dict, Optional

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.testing.errors import InputError
from pybackend_sdk.testing.fakes import Replies
from pybackend_sdk.testing.model_table import ModelTable
from pybackend_sdk.testing.process import ModelProcess, TensorMemory
from pybackend_stub.host_calls import HostRefusal
from pybackend_wire.errors import ErrorCode
from pybackend_wire.host_messages import Detach, Reply
from pybackend_wire.messages import Failure, RequestOptions, RequestResult
from pybackend_wire.stub_messages import Call, CancelCall


class _OpenCall:
    """A model's call of another one.

    Attributes:
        wanted: set when the calling model waits for the next response.
    """

    def __init__(self, message: Call) -> None:
        self.message = message
        self.replies: Optional[Replies] = None
        self.cancelled = False
        self.wanted = threading.Event()

    def cancel(self) -> None:
        """Stop: the caller wants no more responses."""
        self.cancelled = True
        self.wanted.set()
        if self.replies is not None:
            self.replies.cancel()


class CallsOfModel:
    """The open calls of one model.

    Args:
        process: the model's.
        memory: the model's.
        table: the models that it may call.

    Attributes:
        context: of the code that called ``execute`` last.
    """

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
        """End the model's calls of other models."""
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
    return asyncio is not None and asyncio._get_running_loop() is not None
