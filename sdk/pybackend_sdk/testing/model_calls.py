"""Business Logic Scripting in a harness: a model calls other models, which run in the same process."""

import contextvars
import threading
from contextlib import suppress
from typing import Any, Awaitable, Union

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_iterator import ResponseIterator
from pybackend_sdk.testing.errors import HarnessError, InputError
from pybackend_sdk.testing.fakes import Replies
from pybackend_sdk.testing.model_table import CallRefused, ModelTable
from pybackend_wire.errors import ErrorCode

_FAILED = "An error occurred while performing BLS request."


class ModelCalls:
    """Runs a model's BLS requests on the models of a table."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table

    def infer(self, request: InferenceRequest, decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        """Run a request; only the calling thread waits."""
        _check(request)
        replies: Replies
        try:
            replies = self._table.call(request, decoupled=decoupled)
        except CallRefused as refused:
            replies = _OnlyError(request, refused.message, refused.code)
        except InputError as error:
            replies = _OnlyError(request, str(error), ErrorCode.INVALID_ARG)
        except HarnessError as error:
            self._table.failures.keep(error)
            replies = _OnlyError(request, str(error), ErrorCode.UNAVAILABLE)
        if decoupled:
            return ResponseIterator._create(replies.receive, replies.cancel)
        return replies.receive() or InferenceResponse(error=TritonError(_FAILED))

    def infer_async(self, request: InferenceRequest, decoupled: bool) -> "Awaitable[Any]":
        """Run a request in a thread; returns a future of the running event loop.

        Raises:
            RuntimeError: no event loop runs in this thread.
        """
        import asyncio

        _check(request)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def resolve(response: Any, error: Any) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(response)
            else:
                future.set_exception(error)

        def work() -> None:
            response = error = None
            try:
                response = context.run(self.infer, request, decoupled)
            except BaseException as raised:  # noqa: BLE001  the awaiting code gets it
                error = raised
            with suppress(RuntimeError):  # if the model has closed its loop
                loop.call_soon_threadsafe(resolve, response, error)

        threading.Thread(target=work, name="pybackend async_exec", daemon=True).start()
        return future


class _OnlyError:
    """The only response to a call that did not reach its model."""

    def __init__(self, request: InferenceRequest, message: str, code: ErrorCode) -> None:
        assert request._target is not None
        name = request._target.model_name
        if not message.startswith(f"Model {name} "):
            message = f"Model {name} - Error when running inference: {message}"
        self._response: Any = InferenceResponse(error=TritonError(message, code))

    def receive(self) -> Any:
        response, self._response = self._response, None
        return response

    def cancel(self) -> None:
        """Do nothing: no model is running."""


def _check(request: InferenceRequest) -> None:
    if request._target is None:
        raise TritonModelException(
            "A request that was passed to 'execute' cannot be executed again: build an InferenceRequest with a model_name "
            "from its inputs."
        )
