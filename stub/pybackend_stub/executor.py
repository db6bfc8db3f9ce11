"""Runs ``execute`` on the requests of one message and turns whatever comes of it into results."""

import inspect
import time
from typing import Any, Callable, List, Sequence

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.execution import check_returned, prune
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_stub.answers import AnswerQueue
from pybackend_stub.channel import MOST_TEXT, shortened
from pybackend_stub.tensor_io import OutputWriter, RequestReader
from pybackend_wire.errors import ErrorCode
from pybackend_wire.messages import Failure, RequestResult

MUCH_TEXT = 32 * 1024
"""Characters of an execution's errors and parameters with which its answer waits for no others: frames are bounded."""


class OutputMemoryExhausted(TritonModelException):
    """The host refused to grow this instance's output memory."""


class ModelExecutor:
    """Executes batches on one model object, one after another."""

    def __init__(
        self,
        model: Any,
        instance_name: str,
        model_file: str,
        reader: RequestReader,
        writer: OutputWriter,
        answers: AnswerQueue,
        format_error: "Callable[[BaseException], str]",
    ) -> None:
        self._model = model
        self._instance_name = instance_name
        self._model_file = model_file
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._format_error = format_error
        self._loop: Any = None
        self._most_text = self._text = 0

    def run(self, raw_requests: "Sequence[Any]", tail: bytearray) -> int:
        """Execute once, queue the result and return the time it was ready, in monotonic nanoseconds."""
        clock = time.monotonic_ns
        self._most_text, self._text = MOST_TEXT // len(raw_requests), 0
        began_ns = start_ns = clock()
        try:
            requests = self._reader.read(raw_requests, tail)
            start_ns = clock()
            responses = self._execute(requests)
            end_ns = clock()
        except BaseException as error:  # noqa: BLE001  whatever a model raises, SystemExit too, is its requests' answer
            end_ns = clock()
            failed = self._failed(ErrorCode.INTERNAL, self._prefixed(self._format_error(error)))
            results = [failed] * len(raw_requests)
            self._text *= len(raw_requests)
            with self._answers.lock:
                return self._add(began_ns, start_ns, end_ns, results)
        with self._answers.lock:
            results = [self._result(request, response) for request, response in zip(requests, responses)]
            return self._add(began_ns, start_ns, end_ns, results)

    def _add(self, began_ns: int, start_ns: int, end_ns: int, results: "List[RequestResult]") -> int:
        if self._text > MUCH_TEXT:
            self._answers.hurry()
        return self._answers.add_result(began_ns, start_ns, end_ns, results)

    def _execute(self, requests: "List[InferenceRequest]") -> "Sequence[InferenceResponse]":
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise TritonModelException(f"Python model {self._model_file} does not implement `execute` method.")
        returned = execute(requests)
        if inspect.iscoroutine(returned):
            returned = self._wait_for(returned)
        return check_returned(returned, requests)

    def _wait_for(self, coroutine: Any) -> Any:
        """Run an ``async def execute`` to its end; asyncio is imported only for models that have one."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def _result(self, request: InferenceRequest, response: InferenceResponse) -> RequestResult:
        """One request's outcome, its outputs copied to where the host reads them."""
        error = response._error
        if error is not None:
            return self._failed(int(error.code()), str(error.message()))
        parameters = response._parameters or None
        if parameters is not None:
            length = sum(len(key) + len(value) for key, value in parameters.items() if isinstance(value, str))
            if length > self._most_text:
                message = (
                    f"response parameters of {length} characters are too long, at most {self._most_text} can be sent"
                )
                return self._failed(ErrorCode.INTERNAL, self._prefixed(message))
            self._text += length
        try:
            places = self._writer.write(prune(response, request._requested_output_names))
        except OutputMemoryExhausted as exhausted:
            return self._failed(ErrorCode.UNAVAILABLE, str(exhausted))
        except BaseException as failed:  # noqa: BLE001  a tensor whose bytes cannot be had is this request's error alone
            return self._failed(ErrorCode.INTERNAL, self._prefixed(self._format_error(failed)))
        return RequestResult(None, places, parameters)

    def _failed(self, code: int, message: str) -> RequestResult:
        text = shortened(message, self._most_text)
        self._text += len(text)
        return RequestResult(Failure(code, text), (), None)

    def _prefixed(self, message: str) -> str:
        return f"Failed to process the request(s) for model '{self._instance_name}', message: {message}"
