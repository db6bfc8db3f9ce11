"""Runs ``execute`` on the requests of one message and turns whatever comes of it into results."""

import inspect
import time
from typing import Any, Callable, List, NamedTuple, Sequence

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.execution import check_returned, prune
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_wire.errors import ErrorCode
from pybackend_wire.messages import Failure, RequestResult, Result, StubMessage

from pybackend_stub.answers import AnswerQueue
from pybackend_stub.tensor_io import OutputWriter, RequestReader


class OutputMemoryExhausted(TritonModelException):
    """The host refused to grow this instance's output memory."""


class ModelExecutor:
    """Executes batches on one model object, one after another."""

    def __init__(  # noqa: PLR0913, PLR0917  one argument per collaborator
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

    def run(self, raw_requests: "Sequence[Any]", tail: bytearray) -> int:
        """Execute once, queue the result and return the time it was ready, in monotonic nanoseconds."""
        began_ns = time.monotonic_ns()
        requests: List[InferenceRequest] = []
        try:
            requests = self._reader.read(raw_requests, tail)
            start_ns = time.monotonic_ns()
            responses = self._execute(requests)
            end_ns = time.monotonic_ns()
        except BaseException as error:  # noqa: BLE001  whatever a model raises, SystemExit too, is its requests' answer
            end_ns = time.monotonic_ns()
            failed = self._batch_failure(self._format_error(error), len(raw_requests))
            return self._answer(_Times(began_ns, end_ns, end_ns), failed)
        with self._answers.lock:
            results = [self._result(request, response) for request, response in zip(requests, responses)]
            return self._answer(_Times(began_ns, start_ns, end_ns), results)

    def _execute(self, requests: "List[InferenceRequest]") -> "Sequence[InferenceResponse]":
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise TritonModelException(
                "Python model {} does not implement `execute` method.".format(self._model_file)
            )
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
            return RequestResult(Failure(int(error.code()), str(error.message())), (), None)
        try:
            places = [self._writer.write(tensor) for tensor in prune(response, request._requested_output_names)]
        except OutputMemoryExhausted as exhausted:
            return RequestResult(Failure(ErrorCode.UNAVAILABLE, str(exhausted)), (), None)
        except BaseException as failed:  # noqa: BLE001  a tensor whose bytes cannot be had is this request's error alone
            return RequestResult(Failure(ErrorCode.INTERNAL, self._prefixed(self._format_error(failed))), (), None)
        return RequestResult(None, places, response._parameters or None)

    def _batch_failure(self, message: str, count: int) -> "List[RequestResult]":
        failure = Failure(ErrorCode.INTERNAL, self._prefixed(message))
        return [RequestResult(failure, (), None)] * count

    def _prefixed(self, message: str) -> str:
        return "Failed to process the request(s) for model '{}', message: {}".format(self._instance_name, message)

    def _answer(self, times: "_Times", results: "Sequence[RequestResult]") -> int:
        done_ns = time.monotonic_ns()
        message = Result(StubMessage.RESULT, times.began_ns, times.start_ns, times.end_ns, done_ns, results)
        with self._answers.lock:
            self._answers.add(message, done_ns)
        return done_ns


class _Times(NamedTuple):
    """When an execution began, and when ``execute`` was entered and left; monotonic nanoseconds."""

    began_ns: int
    start_ns: int
    end_ns: int

